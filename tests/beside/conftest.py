"""Requests through applications in which more than one instrumentation is at work, and all that they export."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
from opentelemetry import metrics, trace

from otelctx.exchange.node import Node
from otelctx.settings import Settings

Message = dict[str, Any]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


def messages(kind: str) -> list[Message]:
    if kind == "websocket":
        return [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]
    return [{"type": "http.request", "body": b"", "more_body": False}]


class World:
    """``ours`` are the options that let a middleware of ours export to here."""

    def __init__(self, exports: Any) -> None:
        self.reader, self.exporter = exports.reader, exports.exporter
        self.tracers, self.meters = exports.tracers, exports.meters
        self.spans, self.one, self.points = exports.spans, exports.span, exports.points
        self.node = Node(Settings())
        self.theirs: dict[str, Any] = exports.options
        self.ours: dict[str, Any] = {"node": self.node, **exports.options}

    async def request(self, app: Any, path: str = "/items/7", *, kind: str = "http", **extra: Any) -> list[Message]:
        incoming, sent = messages(kind), []
        scope: Message = {
            "type": kind,
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "http" if kind == "http" else "ws",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"example.org"), (b"traceparent", TRACEPARENT.encode()), (b"baggage", b"who=them")],
            "client": ("192.0.2.7", 4711),
            "server": ("127.0.0.1", 8000),
            "state": {},
            **({"method": "GET"} if kind == "http" else {"subprotocols": []}),
            **extra,
        }

        async def receive() -> Message:
            return incoming.pop(0) if incoming else {"type": f"{kind}.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await app(scope, receive, send)
        return sent

    async def lifespan(self, app: Any) -> None:
        incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def receive() -> Message:
            return incoming.pop(0)

        async def send(message: Message) -> None:
            assert message["type"] in ("lifespan.startup.complete", "lifespan.shutdown.complete"), message

        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)

    def by(self) -> list[tuple[str, str]]:
        """Kind and instrumentation of each span, in the order of their ends."""
        return [(s.kind.name, s.instrumentation_scope.name.rpartition(".")[2]) for s in self.spans()]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, make_exports: Callable[[], Any]) -> World:
    """Its providers are the process's own for the time of a test: what is native takes those."""
    made = World(make_exports())
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", made.tracers)
    monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", made.meters)
    return made


@pytest.fixture
def contrib() -> Callable[[str, str], Any]:
    """A class of contrib's, ``contrib("asgi", "OpenTelemetryMiddleware")``; skips loudly where it is not installed."""

    def find(package: str, name: str) -> Any:
        module = f"opentelemetry.instrumentation.{package}"
        pytest.importorskip(module, reason=f"no contrib instrumentation {module}")
        found = getattr(import_module(module), name, None)
        if found is None:
            pytest.skip(f"this version of {module} has no {name}")
        return found

    return find


@pytest.fixture
def instrumented(world: World, contrib: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    """``with instrumented("fastapi", "FastAPIInstrumentor"):`` it is active for the whole process."""

    @contextmanager
    def active(package: str, name: str) -> Iterator[Any]:
        instrumentor = contrib(package, name)()
        instrumentor.instrument(**world.theirs)
        try:
            yield instrumentor
        finally:
            instrumentor.uninstrument()

    return active
