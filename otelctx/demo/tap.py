"""A tap between two processes: passes bytes on unchanged and keeps the heads of what went by.

What the demo says about bytes on the wire is read here, not asked of the code that wrote them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from otelctx import semconv
from otelctx.demo.heads import Head, HeadReader

__all__ = ["Exchange", "Tap"]

FRAME: Final = semconv.HEADER.encode()
ACK: Final = semconv.ACK_HEADER.encode()
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


@dataclass(slots=True)
class Exchange:
    """One request and its answer, as they went by on hop ``hop``."""

    hop: str
    request: Head
    response: Head | None = None

    @property
    def trace_id(self) -> str | None:
        """32 hex digits, from ``traceparent``."""
        value = self.request.value(b"traceparent")
        return value.decode("latin-1")[3:35] if value else None

    @property
    def status(self) -> int | None:
        return int(self.response.start[9:12]) if self.response else None

    @property
    def frame(self) -> str | None:
        """The value of the request's ``otelctx`` header."""
        value = self.request.value(FRAME)
        return value.decode("latin-1") if value else None

    @property
    def ack(self) -> str | None:
        """The value of the response's ``otelctx-ack`` header."""
        value = self.response.value(ACK) if self.response else None
        return value.decode("latin-1") if value else None


class Tap:
    """Listens on a free loopback port and passes everything on to ``target``, which is set once it is known."""

    def __init__(self, hop: str) -> None:
        self.hop = hop
        self.target: tuple[str, int] | None = None
        self.exchanges: list[Exchange] = []
        self.resets = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        if self._server is None:
            raise RuntimeError("the tap has not been started")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def of(self, trace_id: str) -> list[Exchange]:
        """The exchanges of a trace, in the order of their requests."""
        return [exchange for exchange in self.exchanges if exchange.trace_id == trace_id]

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on in both directions until either side ends; a reset by the client is passed on as one."""
        writers = [writer]
        try:
            if self.target is None:
                return
            far_reader, far_writer = await asyncio.open_connection(*self.target)
            writers.append(far_writer)
            seen = _Connection(self)
            up = asyncio.create_task(_pump(reader, far_writer, seen.sent))
            down = asyncio.create_task(_pump(far_reader, writer, seen.answered))
            try:
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
                if up.done() and up.result():
                    self.resets += 1
                    _abort(far_writer)
            finally:
                up.cancel()
                down.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
        except OSError:
            return
        finally:
            for end in writers:
                end.close()


class _Connection:
    """Pairs requests and answers of one connection: HTTP/1.1 answers in order."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._requests = HeadReader()
        self._responses = HeadReader()
        self._open: list[Exchange] = []

    def sent(self, data: bytes) -> None:
        for head in self._requests.feed(data):
            exchange = Exchange(self._tap.hop, head)
            self._tap.exchanges.append(exchange)
            self._open.append(exchange)

    def answered(self, data: bytes) -> None:
        for head in self._responses.feed(data):
            if head.start[9:10] != b"1" and self._open:
                self._open.pop(0).response = head


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, see: Callable[[bytes], None]) -> bool:
    """Pass on until either side ends. Returns whether it was ``reader``'s side that ended, and by a reset."""
    while True:
        try:
            data = await reader.read(65536)
        except ConnectionResetError:
            return True
        if not data:
            return False
        see(data)
        try:
            writer.write(data)
            await writer.drain()
        except OSError:
            return False


def _abort(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
