"""The client's side of one request: its body, and the moment at which it goes away.

A small body of known length is read first, so that it can be sent again and a context frame can be compact. Any other
is handed on as it comes, piece by piece, no faster than the upstream takes it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from otelctx.asgi.types import Receive
from otelctx.gateway.connection import Connection
from otelctx.gateway.failures import BodyTooLarge, ClientGone, RequestTimeout, UpstreamFailure
from otelctx.gateway.head import Limits, RequestHead

__all__ = ["Inbound"]

SMALL: Final = 65536  # bytes; what a context frame's limits let be sent a second time


class Inbound:
    """``content`` is the whole body, ``None`` while it is one that is handed on. :meth:`close` must be called."""

    __slots__ = ("_chunked", "_connection", "_limit", "_receive", "_task", "_timeout", "content", "gone", "length")

    def __init__(self, head: RequestHead, receive: Receive, limits: Limits, timeout: float | None) -> None:
        """``timeout``: seconds in which the client sends nothing of a body that it has begun."""
        self._receive = receive
        self._limit = limits.body
        self._timeout = timeout
        self._chunked = head.chunked
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self.length = head.length
        self.content: bytes | None = None if head.chunked or (head.length or 0) > SMALL else b""
        self.gone = False

    @property
    def replayable(self) -> bool:
        return self.content is not None

    async def read(self) -> None:
        """Read a small body. Raises :class:`ClientGone` or :class:`RequestTimeout`."""
        if self.content is None:
            return
        if self.length:
            pieces: list[bytes] = []
            more = True
            while more:
                piece, more = await self._next()
                pieces.append(piece)
            self.content = b"".join(pieces)
        self._task = asyncio.create_task(self._watch())

    def framing(self) -> list[tuple[bytes, bytes]]:
        """The header that says where the body ends."""
        if self._chunked:
            return [(b"transfer-encoding", b"chunked")]
        return [] if self.length is None else [(b"content-length", str(self.length).encode())]

    def send(self, connection: Connection, head: bytes) -> None:
        """Write a request's ``head`` and its body; a body that is handed on follows by and by.

        From now on the connection is aborted when the client goes. Raises :class:`ClientGone` if it has.
        """
        if self.gone:
            raise ClientGone
        self._connection = connection
        if self.content is not None:
            connection.write(head + self.content, last=True)
            return
        connection.write(head)
        self._task = asyncio.create_task(self._upload(connection))

    async def close(self) -> None:
        """Stop reading."""
        task, self._task = self._task, None
        self._connection = None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _next(self) -> tuple[bytes, bool]:
        try:
            async with asyncio.timeout(self._timeout):
                message = await self._receive()
        except TimeoutError:
            raise RequestTimeout("the client has stopped sending the request's body") from None
        if message["type"] == "http.disconnect":
            self.gone = True
            raise ClientGone
        return message.get("body", b""), message.get("more_body", False)

    async def _upload(self, connection: Connection) -> None:
        size, more = 0, True
        try:
            while more:
                piece, more = await self._next()
                size += len(piece)
                if size > self._limit:
                    raise BodyTooLarge(f"the request body is larger than {self._limit} bytes")
                connection.write(self._framed(piece, more), last=not more)
                await connection.drain()
        except UpstreamFailure:
            pass  # who waits for the response knows, and there may be one all the same
        except (ClientGone, BodyTooLarge, RequestTimeout) as error:
            connection.abort(error)
            return
        await self._watch()

    def _framed(self, piece: bytes, more: bool) -> bytes:
        if not self._chunked:
            return piece
        chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
        return chunk if more else chunk + b"0\r\n\r\n"

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._connection is not None:
            self._connection.abort(ClientGone())
