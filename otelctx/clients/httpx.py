"""httpx and httpx2, which have the same interface: neither is imported here, a client brings its library along.

A client's transports are wrapped in place. A transport given by us instead would lose what the client has been set up
with: proxies, certificates, HTTP/2.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache, partial
from types import ModuleType, TracebackType, new_class
from typing import Any, Final, TypeVar

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from otelctx.clients.abandoned import Watched
from otelctx.clients.attempt import Attempt, Head, Others, Party, start, suppressed
from otelctx.clients.handshake import arun, run
from otelctx.clients.peer import peer_of
from otelctx.clients.refusals import too_large
from otelctx.clients.target import Target
from otelctx.errors import ConfigError
from otelctx.exchange.node import Node, default_node
from otelctx.semconv import ACK_HEADER

__all__ = ["instrument"]

T = TypeVar("T")

_LIBRARIES: Final = ("httpx", "httpx2")
_OTHERS: Final[Others] = ("opentelemetry.instrumentation.httpx",)
_ACK: Final = ACK_HEADER.encode()
# In a request's extensions: how often it has been sent. A redirect takes it along to the next request.
_SENT: Final = "otelctx.sent"


def instrument(
    client: T,
    *,
    node: Node | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> T:
    """Wrap the transports of an ``httpx`` or ``httpx2`` ``Client`` or ``AsyncClient``, mounts and proxies included.

    Returns the same object; a second time changes nothing. Raises :class:`~otelctx.errors.ConfigError` for anything
    else, and for settings in the environment that mean nothing.
    """
    if node is None:
        default_node()  # an environment that is wrong is reported here, and not by the first request
    library, asynchronous = _library(client)
    cls = _transport(library, asynchronous)
    party = Party(node, tracer_provider, meter_provider)
    state: dict[str, Any] = vars(client)

    def wrap(transport: Any) -> Any:
        return transport if transport is None or isinstance(transport, _Wrapper) else cls(transport, library, party)

    state["_transport"] = wrap(state["_transport"])
    state["_mounts"] = {pattern: wrap(transport) for pattern, transport in state["_mounts"].items()}
    return client


def _library(client: object) -> tuple[ModuleType, bool]:
    """The library that ``client`` is of, and whether it is an ``AsyncClient``."""
    for cls in type(client).__mro__:
        name = cls.__module__.partition(".")[0]
        if name in _LIBRARIES and cls.__name__ in ("Client", "AsyncClient"):
            return sys.modules[name], cls.__name__ == "AsyncClient"
    raise ConfigError(f"not a client of httpx or httpx2: {type(client).__module__}.{type(client).__qualname__}")


@lru_cache(maxsize=8)
def _transport(library: Any, asynchronous: bool) -> Any:
    base = library.AsyncBaseTransport if asynchronous else library.BaseTransport
    own = AsyncTransport if asynchronous else SyncTransport
    return new_class(own.__name__, (own, base), exec_body=lambda body: body.update(__module__=__name__))


@lru_cache(maxsize=8)
def _stream(library: Any, asynchronous: bool) -> Any:
    base = library.AsyncByteStream if asynchronous else library.SyncByteStream
    own = AsyncStream if asynchronous else SyncStream
    return new_class(own.__name__, (own, base), exec_body=lambda body: body.update(__module__=__name__))


class _Wrapper:
    """What both transports share. Everything else is asked of the transport inside."""

    def __init__(self, inner: Any, library: Any, party: Party) -> None:
        self._inner = inner
        self._library = library
        self._party = party

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # not there yet, as in a copy that is being made
            raise AttributeError(name)
        return getattr(self._inner, name)

    def _start(self, request: Any) -> Attempt:
        url, headers = request.url, request.headers.raw
        sent = request.extensions.get(_SENT, 0)
        self._count(request, sent + 1)
        target = Target.of(
            method=request.method,
            scheme=url.scheme,
            host=url.host,
            port=url.port,
            raw_path=url.raw_path,
            userinfo=bool(url.userinfo),
            body=self._body(request.stream),
            headers=headers,
            sent=sent,
        )
        return start(self._party, target, _OTHERS)

    @staticmethod
    def _count(request: Any, sent: int) -> None:
        request.extensions = {**request.extensions, _SENT: sent}  # the dict may be one that other requests share

    def _body(self, stream: Any) -> int | None:
        if not isinstance(stream, self._library.ByteStream):
            return None
        return sum(map(len, stream))  # it is one piece

    def _copy(self, request: Any, attempt: Attempt) -> Any:
        """The same request with other headers. The caller's own is what a redirect to another origin is made from."""
        copied = object.__new__(type(request))
        vars(copied).update(vars(request))
        copied.headers = self._library.Headers(attempt.headers(request.headers.raw))
        return copied

    @staticmethod
    def _head(response: Any) -> Head:
        version = response.extensions.get("http_version")
        acks = [value for name, value in response.headers.raw if name.lower() == _ACK]
        spelled = version.decode("latin-1").removeprefix("HTTP/") if isinstance(version, bytes) else None
        stream = response.extensions.get("network_stream")
        peer = None if stream is None else peer_of(lambda: stream.get_extra_info("server_addr"))
        return Head(response.status_code, spelled, acks, too_large(response.status_code, response.headers), peer)

    def _watched(self, response: Any, attempt: Attempt, asynchronous: bool) -> Any:
        if response.is_closed or response.status_code == 101:
            # It came as a whole, as from a mock; or the connection is no longer HTTP.
            attempt.end()
        else:
            response.stream = _stream(self._library, asynchronous)(response.stream, attempt)
        return response


class SyncTransport(_Wrapper):
    def handle_request(self, request: Any) -> Any:
        if suppressed():
            return self._inner.handle_request(request)
        response, attempt = run(
            self._start(request),
            _OTHERS,
            send=partial(self._send, request),
            head=self._head,
            drop=lambda response: response.close(),
        )
        self._count(request, attempt.sent)
        return self._watched(response, attempt, False)

    def _send(self, request: Any, attempt: Attempt) -> Any:
        return self._inner.handle_request(self._copy(request, attempt))

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Any:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(kind, error, trace)


class AsyncTransport(_Wrapper):
    async def handle_async_request(self, request: Any) -> Any:
        if suppressed():
            return await self._inner.handle_async_request(request)
        response, attempt = await arun(
            self._start(request),
            _OTHERS,
            send=partial(self._send, request),
            head=self._head,
            drop=lambda response: response.aclose(),
        )
        self._count(request, attempt.sent)
        return self._watched(response, attempt, True)

    async def _send(self, request: Any, attempt: Attempt) -> Any:
        return await self._inner.handle_async_request(self._copy(request, attempt))

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Any:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)


class _Body(Watched):
    """A response body; its end is the attempt's, whichever way it comes. Holds no Context across a ``yield``."""

    def __init__(self, inner: Any, attempt: Attempt) -> None:
        super().__init__(attempt)
        self._inner = inner


class SyncStream(_Body):
    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._inner
        except GeneratorExit:
            raise  # left early; close() comes next
        except BaseException as error:
            self._attempt.end(error)
            raise
        self._attempt.end()

    def close(self) -> None:
        try:
            self._inner.close()
        except BaseException as error:
            self._attempt.end(error)
            raise
        self._attempt.end()


class AsyncStream(_Body):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                yield chunk
        except GeneratorExit:
            raise  # left early; aclose() comes next
        except BaseException as error:
            self._attempt.end(error)
            raise
        self._attempt.end()

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        except BaseException as error:
            self._attempt.end(error)
            raise
        self._attempt.end()
