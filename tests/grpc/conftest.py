"""Real servers of both kinds on loopback, generic handlers without generated code, and both kinds of channels."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from opentelemetry import trace

from otelctx.context.current import ContextKey, UpKey, current_scope, session
from otelctx.context.scope import Scope
from otelctx.exchange.node import Node
from otelctx.grpc import interceptors
from otelctx.grpc.client import instrument
from otelctx.settings import Settings

SECRET = "1:" + base64.b64encode(bytes(range(32))).decode()
TIER = ContextKey("grpc.tier", str)
SPENT = UpKey("grpc.spent", int, rule="sum")
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


@dataclass
class Seen:
    """What the handlers of a test have seen, one entry a call that reached them."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)  # as it arrived, refused calls too

    def note(self, context: Any) -> None:
        scope = current_scope()
        self.calls.append(
            {
                "tier": TIER.get(),
                "source": None if scope is None else scope.source,
                "incomplete": scope is not None and scope.incomplete,
                "metadata": dict(context.invocation_metadata() or ()),
                "trace": trace.get_current_span().get_span_context().trace_id,
                "thread": threading.current_thread().name,
            }
        )

    def tiers(self) -> list[str | None]:
        return [call["tier"] for call in self.calls]

    def frames(self) -> list[int]:
        """Sizes of the frames that arrived."""
        return [len(m["otelctx-bin"]) for m in self.metadata if "otelctx-bin" in m]


class Arrivals(grpc.ServerInterceptor):
    """Keeps what arrives, before anybody else has seen it."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        self.seen.metadata.append(dict(details.invocation_metadata))
        return continuation(details)


class AioArrivals(grpc.aio.ServerInterceptor):
    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        self.seen.metadata.append(dict(details.invocation_metadata))
        return await continuation(details)


def sync_handlers(seen: Seen, act: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """Each kind: notes, spends a token for each message in or out, and answers what ``act`` says."""

    def unary_unary(request: bytes, context: Any) -> bytes:
        seen.note(context)
        SPENT.record(1)
        act(request, context)
        return request

    def unary_stream(request: bytes, context: Any) -> Iterator[bytes]:
        seen.note(context)
        for number in range(3):
            SPENT.record(1)
            act(request, context)
            yield b"%d:%s" % (number, (TIER.get() or "none").encode())

    def stream_unary(requests: Iterator[bytes], context: Any) -> bytes:
        seen.note(context)
        joined = b"".join(requests)
        SPENT.record(1)
        act(joined, context)
        return joined

    def stream_stream(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        seen.note(context)
        for request in requests:
            SPENT.record(1)
            act(request, context)
            yield request

    return {
        "unary_unary": grpc.unary_unary_rpc_method_handler(unary_unary),
        "unary_stream": grpc.unary_stream_rpc_method_handler(unary_stream),
        "stream_unary": grpc.stream_unary_rpc_method_handler(stream_unary),
        "stream_stream": grpc.stream_stream_rpc_method_handler(stream_stream),
    }


def aio_handlers(seen: Seen, act: Callable[[Any, Any], Any]) -> dict[str, Any]:
    async def do(request: bytes, context: Any) -> None:
        SPENT.record(1)
        done = act(request, context)
        if asyncio.iscoroutine(done):
            await done

    async def unary_unary(request: bytes, context: Any) -> bytes:
        seen.note(context)
        await do(request, context)
        return request

    async def unary_stream(request: bytes, context: Any) -> Any:
        seen.note(context)
        for number in range(3):
            await do(request, context)
            yield b"%d:%s" % (number, (TIER.get() or "none").encode())

    async def stream_unary(requests: Any, context: Any) -> bytes:
        seen.note(context)
        joined = b"".join([request async for request in requests])
        await do(joined, context)
        return joined

    async def stream_stream(requests: Any, context: Any) -> None:
        """Writes itself, as the other style of aio handlers does."""
        seen.note(context)
        async for request in requests:
            await do(request, context)
            await context.write(request)

    return {
        "unary_unary": grpc.unary_unary_rpc_method_handler(unary_unary),
        "unary_stream": grpc.unary_stream_rpc_method_handler(unary_stream),
        "stream_unary": grpc.stream_unary_rpc_method_handler(stream_unary),
        "stream_stream": grpc.stream_stream_rpc_method_handler(stream_stream),
    }


class Server:
    """A running server; ``seen`` what its handlers saw, ``act`` what they do beside."""

    def __init__(
        self,
        style: str,
        chain: Callable[[], list[Any]],
        *,
        port: int = 0,
        seen: Seen | None = None,
        sync_in_aio: bool = False,
        options: list[tuple[str, Any]] | None = None,
        workers: int = 4,
    ) -> None:
        self.style, self.chain, self.seen = style, chain, seen or Seen()
        self.act: Callable[[Any, Any], Any] = lambda request, context: None
        self.sync_in_aio = sync_in_aio
        # Two servers on one port would both accept: a restart must find the old one gone.
        self.options = [("grpc.so_reuseport", 0), *(options or [])]
        self.pool = ThreadPoolExecutor(workers)
        self._ready = threading.Event()
        self._stop: Callable[[], Any] = lambda: None
        self._start_sync(port) if style == "sync" else self._start_aio(port)
        self.target = f"127.0.0.1:{self.port}"

    def _handlers(self, aio: bool) -> list[Any]:
        make = aio_handlers if aio else sync_handlers
        made = make(self.seen, lambda request, context: self.act(request, context))
        return [grpc.method_handlers_generic_handler("test.Echo", made)]

    def _start_sync(self, port: int) -> None:
        chain = [Arrivals(self.seen), *self.chain()]
        server = grpc.server(self.pool, self._handlers(False), chain, self.options)
        self.port = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        self._stop = lambda: server.stop(0).wait()

    def _start_aio(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aio-server")
        self._thread.start()

        async def begin() -> Any:
            chain = [AioArrivals(self.seen), *self.chain()]
            server = grpc.aio.server(self.pool, self._handlers(not self.sync_in_aio), chain, self.options)
            self.port = server.add_insecure_port(f"127.0.0.1:{port}")
            await server.start()
            return server

        server = asyncio.run_coroutine_threadsafe(begin(), self._loop).result(60)

        def stop() -> None:
            asyncio.run_coroutine_threadsafe(server.stop(0), self._loop).result(60)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), self._loop).result(60)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

        self._stop = stop

    def stop(self) -> None:
        stop, self._stop = self._stop, lambda: None
        stop()
        self.pool.shutdown()


class Client:
    """A channel of either kind, behind one blocking interface."""

    def __init__(self, style: str, target: str, node: Node, report: Any, **options: Any) -> None:
        self.style, self.node = style, node
        wraps = {key: options.pop(key) for key in ("balanced",) if key in options}
        if style == "sync":
            self.bare = grpc.insecure_channel(target, **options)
            self.channel: Any = instrument(self.bare, node=node, **report.options, **wraps)
        else:
            self.runner = asyncio.Runner()
            extra = options.pop("outer", [])
            chain = [*extra, *interceptors(node=node, **report.options, **wraps)]

            async def make() -> Any:
                return grpc.aio.insecure_channel(target, interceptors=chain, **options)

            self.channel = self.run(make())

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine, context=copy_context())

    def call(self, kind: str, *requests: bytes, method: str | None = None, **options: Any) -> Any:
        """Call and read to the end: the answer, or a list of them."""
        method = f"/test.Echo/{method or kind}"
        if self.style == "sync":
            stub = getattr(self.channel, kind)(method)
            answer = stub(iter(requests) if kind.startswith("stream") else requests[0], **options)
            return list(answer) if kind.endswith("stream") else answer
        return self.run(self._acall(kind, method, requests, options))

    async def _acall(self, kind: str, method: str, requests: Any, options: Any) -> Any:
        stub = getattr(self.channel, kind)(method)

        async def later() -> Any:
            for request in requests:
                yield request

        call = stub(later() if kind.startswith("stream") else requests[0], **options)
        return [answer async for answer in call] if kind.endswith("stream") else await call

    def close(self) -> None:
        if self.style == "sync":
            self.channel.close()
        else:
            self.run(self.channel.close())
            self.runner.close()


@pytest.fixture
def node() -> Callable[..., Node]:
    def make(**settings: Any) -> Node:
        return Node(Settings(**{"keys": SECRET, **settings}))

    return make


@pytest.fixture
def there(checked_exports: Any) -> Any:
    """What the servers of a test report: as the conventions and our table say, whatever the test is about."""
    return checked_exports


@pytest.fixture
def here(make_exports: Any, conventions: Any) -> Iterator[Any]:
    """What the channels of a test report, likewise."""
    made = make_exports()
    yield made
    assert made.complaints(conventions) == []


@pytest.fixture
def serve(node: Callable[..., Node], there: Any) -> Iterator[Callable[..., Server]]:
    """Starts servers: by default with our interceptors and a node of their own."""
    running: list[Server] = []

    def start(
        style: str = "sync", *, chain: Callable[[list[Any]], list[Any]] = lambda ours: ours, **more: Any
    ) -> Server:
        settings = more.pop("settings", {})
        own = node(**settings)
        server = Server(style, lambda: chain(interceptors(node=own, **there.options)), **more)
        running.append(server)
        return server

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def connect(node: Callable[..., Node], here: Any) -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def make(target: str, style: str = "sync", *, own: Node | None = None, **options: Any) -> Client:
        clients.append(Client(style, target, own or node(), here, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def chat() -> Iterator[Scope]:
    with session("chat-42") as scope, TIER.bound("gold"):
        yield scope
