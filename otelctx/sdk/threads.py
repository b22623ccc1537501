"""Calls into the SDK that may take long, in threads that nobody has to wait for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread
from typing import Any

__all__ = ["calling", "start"]

_log = logging.getLogger(__name__)


def calling(provider: Any, name: str) -> Callable[[], None]:
    """A function that calls ``provider.name()``, if there is such a method, and does not raise."""
    call: Callable[[], Any] = getattr(provider, name, lambda: None)

    def run() -> None:
        try:
            call()
        except Exception:
            # The SDK raises here what it could not deliver; the counts say it better.
            _log.debug("%s of %s failed", name, type(provider).__name__, exc_info=True)

    return run


def start(target: Callable[[], None], name: str) -> Thread:
    """``target`` in a thread that is a daemon, so that the interpreter's own end does not wait for it either."""
    thread = Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
