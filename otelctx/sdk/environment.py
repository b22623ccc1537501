"""Defaults for the SDK's configurator, which reads nothing but the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["defaults"]


@contextmanager
def defaults(values: Mapping[str, str], forced: Mapping[str, str] | None = None) -> Iterator[None]:
    """``values`` where a variable is unset or empty, and ``forced`` in any case, for as long as the block lasts.

    Undone at the end: child processes inherit what the user has set, not what we chose.
    """
    given = {name: value for name, value in values.items() if not os.environ.get(name)} | dict(forced or {})
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
