"""A rig that drives one application through the middleware, message by message, and shows what it exported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.exchange.node import Node
from otelctx.settings import Settings

Message = dict[str, Any]
DURATION = "http.server.request.duration"
ACTIVE = "http.server.active_requests"


class Response:
    """The messages that one request got."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    @property
    def status(self) -> int | None:
        return next((m["status"] for m in self.messages if m["type"].endswith("response.start")), None)

    @property
    def headers(self) -> dict[str, str]:
        start = next(m for m in self.messages if "headers" in m)
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.messages if m["type"] == "http.response.body")


def scope_of(method: str, path: str, headers: dict[str, str] | list[tuple[bytes, bytes]], **extra: Any) -> Message:
    lines = headers if isinstance(headers, list) else [(k.encode(), v.encode()) for k, v in headers.items()]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": b"",
        "root_path": "",
        "headers": lines,
        "client": ("192.0.2.7", 4711),
        "server": ("127.0.0.1", 8000),
        "state": {},
        **extra,
    }


class Rig:
    def __init__(self, app: Any, **options: Any) -> None:
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        options.setdefault("node", Node(Settings()))
        self.app = ContextMiddleware(app, tracer_provider=self.tracers, meter_provider=self.meters, **options)
        self.last_scope: Message = {}

    async def request(
        self,
        method: str = "GET",
        path: str = "/",
        headers: dict[str, str] | list[tuple[bytes, bytes]] = {},  # noqa: B006  # never changed
        *,
        body: bytes = b"",
        receive: Callable[[], Awaitable[Message]] | None = None,
        send: Callable[[Message], Awaitable[None]] | None = None,
        response: Response | None = None,
        **extra: Any,
    ) -> Response:
        out = response if response is not None else Response()
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def default_receive() -> Message:
            return parts.pop(0) if parts else {"type": "http.disconnect"}

        async def default_send(message: Message) -> None:
            out.messages.append(message)

        self.last_scope = scope_of(method, path, headers, **extra)
        await self.app(self.last_scope, receive or default_receive, send or default_send)
        return out

    async def websocket(
        self,
        path: str,
        incoming: list[Message],
        headers: dict[str, str] | None = None,
        order: list[str] | None = None,
        **extra: Any,
    ) -> Response:
        """``order`` gets the names of the server's callables as they are called."""
        out = Response()
        calls = order if order is not None else []
        pending = [{"type": "websocket.connect"}, *incoming]

        async def receive() -> Message:
            calls.append("receive")
            return pending.pop(0)

        async def send(message: Message) -> None:
            calls.append("send")
            out.messages.append(message)

        scope = scope_of("GET", path, headers or {}, type="websocket", scheme="ws", subprotocols=[], **extra)
        del scope["method"]
        await self.app(scope, receive, send)
        return out

    @property
    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())

    @property
    def span(self) -> Any:
        (span,) = self.spans
        return span

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return []
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def point(self) -> dict[str, Any]:
        """Attributes of the one duration that was recorded; no request is left active."""
        data = self.reader.get_metrics_data()
        assert data is not None
        found = {m.name: m.data.data_points for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
        (point,) = found[DURATION]
        assert point.count == 1
        assert all(active.value == 0 for active in found.get(ACTIVE, ()))
        return dict(point.attributes)


@pytest.fixture
def rig(conventions: Any) -> Iterator[Callable[..., Rig]]:
    """Makes rigs. Whatever a test has them do, what they export is as the conventions and our table say."""
    made: list[Rig] = []

    def make(app: Any, **options: Any) -> Rig:
        made.append(Rig(app, **options))
        return made[-1]

    yield make
    for each in made:
        assert conventions.spans(each.spans) == []
        assert conventions.metrics(each.reader.get_metrics_data()) == []


async def answer(send: Any, status: int = 200, body: bytes = b"ok") -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def ok() -> Any:
    return answer
