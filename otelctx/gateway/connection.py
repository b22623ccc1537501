"""One connection to an upstream: a request goes out, a response comes back, with back-pressure both ways."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from otelctx.gateway.failures import UpstreamClosed, UpstreamFailure, UpstreamTimeout
from otelctx.gateway.parser import Head, ResponseParser

__all__ = ["Connection"]

_HIGH: Final = 65536  # bytes of a body that wait to be taken; over it the upstream has to wait


class Connection(asyncio.Protocol):
    """Not for use by two requests at once. ``loop.create_connection(Connection, …)`` makes one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._error: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._write_paused = self._read_paused = False
        self._sent = self._heard = False
        self._touched = 0.0
        self.closed = False
        self.used = 0

    # what a request does with it

    def begin(self, method: str) -> None:
        """Get ready for the response to a request that is about to be written."""
        self._parser = ResponseParser(method)
        self._error = None
        self._sent = self._heard = False
        self.used += 1

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Hand over bytes; ``last`` ends the request. What can't be sent is noticed by who waits for the response."""
        if self._transport is not None and not self.closed:
            self._transport.write(data)
        self._sent = last
        self._touched = self._loop.time()

    @property
    def crossed(self) -> bool:
        """Whether nothing was heard on a connection that had served before: its end may have crossed the request."""
        return self.used > 1 and not self._heard

    async def drain(self) -> None:
        """Wait until the upstream takes more. Raises what has ended the connection."""
        if self._error is not None:
            raise self._error
        if self._write_paused:
            self._writer = self._loop.create_future()
            await self._writer
            if self._error is not None:
                raise self._error

    async def head(self, within: float | None) -> Head:
        """The head of the response. Raises :class:`UpstreamFailure`, or what :meth:`abort` was given.

        ``within``: seconds in which something has to go, either way.
        """
        parser = cast("ResponseParser", self._parser)
        while parser.head is None:
            await self._wait(within, "to answer")
        return parser.head

    async def chunk(self, within: float | None) -> bytes:
        """The next piece of the body as it comes, or no bytes at its end. Raises as :meth:`head` does."""
        parser = cast("ResponseParser", self._parser)
        while not parser.size:
            if parser.complete:
                return b""
            await self._wait(within, "to go on")
        data = parser.take()
        if self._read_paused and self._transport is not None:
            self._read_paused = False
            self._transport.resume_reading()
        return data

    def finish(self) -> bool:
        """The request is over. Whether the connection may be used for another one."""
        parser, self._parser = self._parser, None
        if parser is None:
            return False
        parser.close()
        return parser.complete and parser.reusable and self._sent and not self.closed and self._error is None

    def abort(self, error: BaseException | None = None) -> None:
        """Close at once. Who waits for something gets ``error``."""
        self._fail(error or UpstreamClosed("the connection was given up"))
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self, within: float | None, what: str) -> None:
        while True:
            if self._error is None and self.closed:  # before the request began, so that nobody was told
                self._fail(UpstreamClosed("the upstream has closed the connection without a response"))
            if self._error is not None:
                raise self._error
            self._reader = self._loop.create_future()
            try:
                async with asyncio.timeout_at(None if within is None else self._touched + within):
                    await self._reader
                    return
            except TimeoutError:
                if within is not None and self._loop.time() >= self._touched + within:
                    raise UpstreamTimeout(f"the upstream took too long {what}") from None
            finally:
                self._reader = None

    # what the event loop does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        self._touched = self._loop.time()
        if parser is None:  # nobody has asked for anything
            self.abort()
            return
        self._heard = True
        try:
            parser.feed(data)
        except UpstreamFailure as error:
            self.abort(error)
            return
        if parser.size > _HIGH and not self._read_paused and self._transport is not None:
            self._read_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._ended(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(exc)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def _ended(self, exc: Exception | None) -> None:
        self.closed = True
        parser = self._parser
        if parser is not None and self._error is None:
            try:
                if exc is not None and not parser.complete:
                    raise UpstreamClosed(f"the connection to the upstream was lost: {exc}")
                parser.eof()
            except UpstreamFailure as error:
                self._fail(error)
        self._write_paused = False
        self._wake()

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        for future in (self._reader, self._writer if self.closed or self._error else None):
            if future is not None and not future.done():
                future.set_result(None)
