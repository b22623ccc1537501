"""Signals that end a server, which has telemetry to deliver after its end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

__all__ = ["handled"]

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within, ``handler`` gets SIGINT and SIGTERM; after it they go where they went before. For the main thread only.

    In place of uvicorn's own ``capture_signals``, which raises the signal once more when the server is down, so that
    telemetry would never be sent.
    """
    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)
