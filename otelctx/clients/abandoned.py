"""Ends what nobody has ended: the attempts whose responses were dropped unread.

They are noticed by the garbage collector, which may run anywhere, also where this very thread holds a lock of the SDK.
So a finaliser ends nothing itself; it hands over to a thread, by the one queue that is safe to use in a finaliser.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

from otelctx.clients.attempt import Attempt

__all__ = ["Released", "Watched", "hand_over", "watch"]

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


class Watched:
    """Belongs to a response body, and goes with it: then at the latest the attempt is over."""

    _attempt: Attempt

    def __init__(self, attempt: Attempt) -> None:
        watch()
        self._attempt = attempt

    def __del__(self) -> None:
        attempt = self.__dict__.get("_attempt")
        if attempt is not None and attempt.live:
            hand_over(attempt.end)


class Released(Watched):
    """What a library calls when it lets go of the connection of a response: at the end of the body, or before."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt)
        self._handled = id(sys.exception())  # a request may be made where another's failure is being handled

    def raised(self) -> BaseException | None:
        """What is being raised while the connection is let go, unless it has nothing to do with this request."""
        error = sys.exception()
        return None if id(error) == self._handled else error


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
