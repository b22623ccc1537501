"""aiohttp, which is not imported here: a session brings its library along.

Each request gets a middleware of ours, behind all others: aiohttp calls it once for each hop of a redirect, for each
repetition of its own, and for each of another middleware's. So everything that makes a session what it is stays:
connector, cookies, timeouts, middlewares, trace configs.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from functools import partial
from typing import Any, Final, TypeVar

from opentelemetry import context as otel_context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from otelctx.clients.abandoned import Released, hand_over
from otelctx.clients.attempt import Attempt, Head, Others, Party, quiet, start, suppressed
from otelctx.clients.handshake import arun, awithin
from otelctx.clients.headers import Headers
from otelctx.clients.peer import peer_of
from otelctx.clients.refusals import too_large
from otelctx.clients.target import Target
from otelctx.errors import ConfigError
from otelctx.exchange.node import Node, default_node
from otelctx.semconv import ACK_HEADER

__all__ = ["instrument"]

T = TypeVar("T")

_OTHERS: Final[Others] = ("opentelemetry.instrumentation.aiohttp_client",)
_ACK: Final = ACK_HEADER.encode()
_REQUEST: Final = "_request"


def instrument(
    session: T,
    *,
    node: Node | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> T:
    """Trace what an ``aiohttp.ClientSession`` sends, WebSocket handshakes included, and let it carry context.

    Returns the same object; a second time changes nothing. Raises :class:`~otelctx.errors.ConfigError` for anything
    else, for an aiohttp without client middlewares (3.12 is the first), and for settings in the environment that mean
    nothing.
    """
    kind = type(session)
    if not any(c.__name__ == "ClientSession" and c.__module__.partition(".")[0] == "aiohttp" for c in kind.__mro__):
        raise ConfigError(f"not a session of aiohttp: {kind.__module__}.{kind.__qualname__}")
    library = sys.modules["aiohttp"]
    if not hasattr(library, "ClientMiddlewareType"):
        raise ConfigError(f"aiohttp {library.__version__} has no client middlewares; install aiohttp>=3.12")
    if node is None:
        default_node()  # an environment that is wrong is reported here, and not by the first request
    state = vars(session)
    if not isinstance(state.get(_REQUEST), _Request):
        state[_REQUEST] = _Request(session, Party(node, tracer_provider, meter_provider))
    return session


class _Request:
    """Stands in for the method of a session that all others call. Per request, since a request may bring middlewares
    of its own, which replace the session's."""

    def __init__(self, session: Any, party: Party) -> None:
        self._session = weakref.ref(session)  # the session has this, and shall go without waiting for a collector
        self._before = vars(session).get(_REQUEST)
        self._party = party

    async def __call__(self, method: str, url: Any, **options: Any) -> Any:
        session: Any = self._session()
        call = self._before or partial(type(session)._request, session)
        if suppressed():
            return await call(method, url, **options)
        middlewares = options.pop("middlewares", None)
        if middlewares is None:
            middlewares = session._middlewares
        ours = _Attempts(self._party, sys.modules["aiohttp"])
        send = partial(call, method, url, **options, middlewares=(*middlewares, ours))
        # Another instrumentation that is loaded sees the request as a whole, before any attempt.
        return await awithin(quiet(_OTHERS, otel_context.get_current()), send)


class _Attempts:
    """The middleware of one request."""

    def __init__(self, party: Party, library: Any) -> None:
        self._party = party
        self._library = library
        self._sent = 0

    async def __call__(self, request: Any, handler: Any) -> Any:
        attempt = start(self._party, self._target(request), _OTHERS)
        self._sent += 1
        send = partial(_send, request, handler)
        response, attempt = await arun(attempt, _OTHERS, send=send, head=_head, drop=_drop)
        self._sent = attempt.sent
        self._watch(response, attempt)
        return response

    def _target(self, request: Any) -> Target:
        url = request.url
        return Target.of(
            method=request.method,
            scheme=url.scheme,
            host=url.raw_host or "",
            port=url.port,
            raw_path=url.raw_path_qs.encode(),
            userinfo=bool(url.raw_user or url.raw_password),
            body=self._body(request.body),
            headers=_present(request.headers),
            sent=self._sent,
        )

    def _body(self, body: Any) -> int | None:
        if isinstance(body, self._library.BytesPayload):
            size: int | None = body.size
            return size
        if isinstance(body, bytes):
            return len(body)
        return 0 if body is None else None

    def _watch(self, response: Any, attempt: Attempt) -> None:
        connection = response.connection
        if connection is None or response.status == 101:
            attempt.end()  # it is here as a whole; or the connection is no longer HTTP
        else:
            connection.add_callback(_Release(attempt, response, self._library.ClientConnectionError))


def _present(headers: Any) -> Headers:
    return [(name.encode(errors="replace"), value.encode(errors="replace")) for name, value in headers.items()]


async def _send(request: Any, handler: Any, attempt: Attempt) -> Any:
    """Sends it with other headers, and leaves it with its own, in case another middleware sends it again."""
    before = request.headers
    pairs = attempt.headers(_present(before))
    request.headers = type(before)((name.decode(), value.decode(errors="replace")) for name, value in pairs)
    try:
        return await handler(request)
    finally:
        request.headers = before


def _head(response: Any) -> Head:
    version = response.version
    acks = [value for name, value in response.raw_headers if name.lower() == _ACK]
    spelled = None if version is None else f"{version.major}.{version.minor}"
    connection = response.connection  # none if the whole response is here
    peer = None if connection is None else peer_of(lambda: connection.transport.get_extra_info("peername"))
    return Head(response.status, spelled, acks, too_large(response.status, response.headers), peer)


async def _drop(response: Any) -> None:
    response.release()


class _Release(Released):
    """Called at the end of the body, by ``close`` and ``release``, and by the finaliser of a response."""

    def __init__(self, attempt: Attempt, response: Any, closed: type[BaseException]) -> None:
        super().__init__(attempt)
        self._response = weakref.ref(response)
        self._content = response.content
        self._closed = closed

    def __call__(self) -> None:
        error: BaseException | None = self._content.exception()
        if type(error) is self._closed:  # what aiohttp leaves there when the application has closed it
            raised = self.raised()
            error = raised if isinstance(raised, asyncio.TimeoutError) else None
        response = self._response()
        if response is None or not response.closed:
            # In its finaliser; see abandoned.py.
            hand_over(partial(self._attempt.end, error))
        else:
            self._attempt.end(error)
