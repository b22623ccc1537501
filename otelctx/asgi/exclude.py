"""Paths that get no span and no metric; context flows through them all the same."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable

from otelctx.errors import ConfigError

__all__ = ["matcher"]


def matcher(patterns: str | Iterable[str]) -> Callable[[str], bool] | None:
    """A test for paths, or ``None`` if nothing is excluded.

    ``"/health"`` is exact, ``"/static/*"`` a prefix, any other ``*``, ``?`` or ``[…]`` a glob over the whole path. The
    path alone is looked at, never host or query. Raises :class:`~otelctx.errors.ConfigError` unless each starts with
    ``/`` or ``*``.
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not pattern.startswith(("/", "*")):
            raise ConfigError(f"excluded path {pattern!r} must start with '/' or '*'; it is matched against the path")
    exact: set[str] = set()
    prefixes: list[str] = []
    globs: list[str] = []
    for pattern in patterns:
        if not _is_glob(pattern):
            exact.add(pattern)
        elif pattern.endswith("*") and not _is_glob(pattern[:-1]):
            prefixes.append(pattern[:-1])
        else:
            globs.append(fnmatch.translate(pattern))
    if not patterns:
        return None
    names, starts = frozenset(exact), tuple(prefixes)
    glob = re.compile("|".join(globs)) if globs else None

    def excluded(path: str) -> bool:
        return path in names or path.startswith(starts) or (glob is not None and glob.match(path) is not None)

    return excluded


def _is_glob(pattern: str) -> bool:
    return any(c in pattern for c in "*?[")
