"""Ends what nobody has ended: the spans of responses that were dropped unread.

They are noticed by the garbage collector, which may run anywhere, also where this very thread holds a lock of the SDK.
So a finaliser ends nothing itself; it hands over to a thread, by the one queue that is safe to use in a finaliser.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

__all__ = ["hand_over", "watch"]

_log = logging.getLogger(__name__)
_queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
_lock = Lock()
_thread: Thread | None = None


def watch() -> None:
    """Make sure that somebody takes what :func:`hand_over` gives. Not for finalisers: starting a thread takes locks."""
    global _thread
    if _thread is None:
        with _lock:
            if _thread is None:
                _thread = Thread(target=_run, args=(_queue,), name="otelctx-abandoned", daemon=True)
                _thread.start()


def hand_over(end: Callable[[], None]) -> None:
    """Have ``end`` called soon, in another thread. Safe in ``__del__``."""
    _queue.put(end)


def _run(queue: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        try:
            queue.get()()
        except Exception:
            _log.exception("a request that was dropped could not be ended")


def _after_fork() -> None:
    global _queue, _lock, _thread
    _queue, _lock, _thread = SimpleQueue(), Lock(), None


os.register_at_fork(after_in_child=_after_fork)
