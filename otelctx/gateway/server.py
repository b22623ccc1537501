"""uvicorn as an edge needs it: heads that end, and an end that lets requests finish."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from otelctx.gateway.application import Gateway
from otelctx.gateway.head import TARGET
from otelctx.sdk.signals import handled

__all__ = ["EdgeProtocol", "EdgeServer", "config"]

MAX_HEAD: Final = 131072  # bytes of a head that isn't complete; what a complete one may have is the application's
HEAD_WITHIN: Final = 30.0  # seconds from a request's first byte, or from the connection, to the end of its head
_SEEN: Final = 1.0  # seconds for which /readyz says 503 before the listener closes, for load balancers to see it
_LINGER: Final = 1  # seconds that uvicorn itself waits for what is left
_KEEP: Final = 75  # seconds for an idle connection: longer than what usually stands in front keeps its own
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\n"
_BAD: Final = b"HTTP/1.1 400 Bad Request\r\n"
_END: Final = b"content-length: 0\r\nconnection: close\r\n\r\n"


class EdgeProtocol(HttpToolsProtocol):
    """uvicorn's, with bounds for a head that doesn't end, without trailers, and with the request target as it came.

    A handshake of a websocket is refused if it has a body, after which uvicorn would wait for nothing for ever, or if a
    request before it is not answered yet: the two answers would be written into each other.
    """

    _reading = True
    _head = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._reading:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading, self._head = True, 0
        if self._deadline is None:
            self._arm()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading:  # else it is a trailer, which uvicorn would put beside the headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._reading = False
        self._disarm()
        if self.parser.should_upgrade() and self._should_upgrade() and not self._may_upgrade():
            self._refuse(_BAD)
            return
        super().on_headers_complete()
        scope: Any = self.scope
        scope["extensions"] = {TARGET: self.url}

    def handle_websocket_upgrade(self) -> None:
        if not self.transport.is_closing():
            super().handle_websocket_upgrade()

    def _may_upgrade(self) -> bool:
        body = any(n == b"transfer-encoding" or (n == b"content-length" and v != b"0") for n, v in self.headers)
        return not body and (self.cycle is None or self.cycle.response_complete)

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(HEAD_WITHIN, self._refuse, _TOO_SLOW)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, line: bytes) -> None:
        self._reading = False
        self._disarm()
        if not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(line + _END)
            self.transport.close()


def config(gateway: Gateway) -> uvicorn.Config:
    """How uvicorn is to serve ``gateway``."""
    extra: dict[str, Any] = {}
    if "reset_contextvars" in inspect.signature(uvicorn.Config).parameters:
        # Else a connection hands the Context of its first request to all the later ones.
        extra["reset_contextvars"] = True
    return uvicorn.Config(
        gateway,
        http=EdgeProtocol,
        ws="websockets-sansio",
        ws_max_size=gateway.options.max_message,
        ws_per_message_deflate=False,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="on",
        proxy_headers=False,  # who may say whose request it is, is said by OTELCTX_TRUSTED_PROXIES
        server_header=False,
        date_header=False,  # the upstream's own goes through
        timeout_graceful_shutdown=_LINGER,
        timeout_keep_alive=_KEEP,
        **extra,
    )


class EdgeServer(uvicorn.Server):
    """The first signal begins the drain: ``/readyz`` and new requests get 503, and what runs has ``drain`` seconds to
    finish. The second ends it.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway, drain: float, started: Callable[[], None]) -> None:
        """``started`` is called once requests are taken."""
        super().__init__(config)
        self._gateway = gateway
        self._drain = drain
        self._started = started
        self._signalled: float | None = None

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._signalled is not None:
            self.should_exit = True
            return
        self._signalled = monotonic()
        self._gateway.drain()

    async def on_tick(self, counter: int) -> bool:
        if self._signalled is not None:
            passed = monotonic() - self._signalled
            finished = self._gateway.active == 0 and passed >= min(_SEEN, self._drain)
            self.should_exit = self.should_exit or finished or passed >= self._drain
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with handled(self.handle_exit):
            yield
