"""Several answers, read at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from otelctx.inference.turn import Chunk

__all__ = ["merged"]


async def merged(sources: Sequence[AsyncGenerator[Chunk, None]]) -> AsyncGenerator[tuple[int, Chunk], None]:
    """Chunks as they come, with the index of their source. The first error of any source ends it.

    The sources stay the caller's to close; none is being read any more once this generator is closed.
    """
    if len(sources) == 1:
        async for chunk in sources[0]:
            yield 0, chunk
        return
    reading = {asyncio.ensure_future(anext(source)): index for index, source in enumerate(sources)}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=reading.__getitem__):
                index = reading[task]
                chunk = task.result()  # before it is forgotten: who fails is waited for below as well
                del reading[task]
                if chunk.result is None:
                    reading[asyncio.ensure_future(anext(sources[index]))] = index
                yield index, chunk
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
