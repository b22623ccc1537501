"""SIGHUP, which has servers read their keys again."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from otelctx.exchange.node import default_node

__all__ = ["keys_on_hangup"]


@contextmanager
def keys_on_hangup() -> Iterator[None]:
    """Within, SIGHUP has the file of ``OTELCTX_KEYS_FILE`` read, whether it looks changed or not.

    Without such a file there is nothing to read again, and the signal ends the process, as that of a closed terminal
    does. For the main thread only.
    """
    file = default_node().key_file
    if file is None:
        yield
        return
    logger = logging.getLogger("otelctx.exchange")
    level = logger.level
    logger.setLevel(logging.INFO)  # it says which keys are in use from then on
    before = signal.signal(signal.SIGHUP, lambda *_: file.ask())
    try:
        yield
    finally:
        logger.setLevel(level)
        signal.signal(signal.SIGHUP, signal.SIG_DFL if before is None else before)
