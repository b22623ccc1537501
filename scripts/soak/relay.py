"""A TCP relay on a fixed port, in front of a collector that comes and goes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Literal

__all__ = ["Mode", "Relay"]

Mode = Literal["through", "refuse", "swallow"]


class Relay:
    """``through``: to ``target``. ``refuse``: connections end at once, as where nobody listens. ``swallow``: they are
    taken and read, and nothing ever comes back. A change of mode ends the connections that there are."""

    def __init__(self) -> None:
        self.target: tuple[str, int] = ("127.0.0.1", 0)
        self.port = 0
        self._mode: Mode = "through"
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def switch(self, mode: Mode) -> None:
        self._mode = mode
        await self._end_all()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._end_all()
            await self._server.wait_closed()

    async def _end_all(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                if self._mode == "swallow":
                    while await reader.read(1 << 16):
                        pass
                elif self._mode == "through":
                    await self._pass_on(reader, writer)
        finally:
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(*self.target)
        pumps = [asyncio.create_task(_pump(reader, to_writer)), asyncio.create_task(_pump(to_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            to_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
