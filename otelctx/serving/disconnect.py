"""Stop the work for a client that has gone away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.types import Receive

__all__ = ["Disconnected", "watched"]


class Disconnected(Exception):
    """The client closed the connection before its answer was complete. There is nobody left to tell."""


@asynccontextmanager
async def watched(receive: Receive) -> AsyncIterator[None]:
    """The block is cancelled once ``receive`` says that the client has gone; :class:`Disconnected` comes out of it.

    The request's body must have been read. The block stays in the caller's task, so that spans and context variables
    are entered and left in one place; only the watching is done by another one, which has ended when the block has. A
    cancellation from outside stays one.
    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("there is no task to watch for")
    gone = False

    async def watch() -> None:
        nonlocal gone
        with suppress(OSError):
            while (await receive())["type"] != "http.disconnect":
                pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        try:
            yield
        finally:
            watcher.cancel()
            # A cancellation that came as the block ended is delivered here.
            await asyncio.wait([watcher])
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise Disconnected from None
        raise
