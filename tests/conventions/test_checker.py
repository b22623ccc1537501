"""The checker finds what it is for: each thing that can be wrong about a span or a metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

SERVER: dict[str, Any] = {
    "http.request.method": "GET",
    "url.path": "/a",
    "url.scheme": "http",
    "http.route": "/{x}",
    "http.response.status_code": 200,
}
CLIENT: dict[str, Any] = {
    "http.request.method": "GET",
    "url.full": "http://h/",
    "server.address": "h",
    "server.port": 80,
}
CHAT: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "otelctx",
    "gen_ai.request.model": "m",
    "otelctx.outcome": "completed",
}
Span = Callable[..., Any]


@pytest.fixture
def span() -> Span:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def make(name: str, kind: SpanKind, attributes: dict[str, Any], status: StatusCode | None = None) -> Any:
        made = provider.get_tracer("otelctx").start_span(name, kind=kind, attributes=attributes)
        if status is not None:
            made.set_status(status)
        made.end()
        return exporter.get_finished_spans()[-1]

    return make


def test_what_is_right_is_not_complained_about(conventions: Any, span: Span) -> None:
    found = [
        span("GET /{x}", SpanKind.SERVER, SERVER),
        span("GET", SpanKind.CLIENT, CLIENT),
        span("chat m", SpanKind.INTERNAL, CHAT),
        span("queue", SpanKind.INTERNAL, {"otelctx.overflow": True}),
        span("HTTP", SpanKind.CLIENT, CLIENT | {"http.request.method": "_OTHER", "http.request.method_original": "X"}),
    ]
    assert conventions.spans(found) == []


@pytest.mark.parametrize(
    ("base", "change", "complaint"),
    [
        (SERVER, {"url.path": None}, "url.path is required"),
        (SERVER, {"http.route": None}, "should be named 'GET'"),
        (SERVER, {"http.response.status_code": "200"}, "not a int"),
        (SERVER, {"http.status_code": 200}, "http.status_code has no place there"),
        (SERVER, {"net.peer.ip": "::1"}, "net.peer.ip has no place there"),
        (SERVER, {"server.address": "h:80"}, "has the port in it"),
        (SERVER, {"server.port": 80}, "a port without its address"),
        (SERVER, {"error.type": "X"}, "status UNSET with error.type 'X'"),
        (SERVER, {"http.response.status_code": 503}, "503 is an error"),
        (SERVER, {"http.request.method_original": "GET"}, "belongs to _OTHER alone"),
        (SERVER, {"otelctx.invented": 1}, "the table has no otelctx.invented"),
        (SERVER, {"otelctx.context.source": "elsewhere"}, "none of the table's"),
        (SERVER, {"otelctx.frame.kind": 1}, "which the table has as string"),
        (CLIENT, {"http.response.status_code": 404}, "404 is an error"),
        (CLIENT, {"server.port": None}, "server.port is required"),
        (CHAT, {"gen_ai.provider.name": None}, "gen_ai.provider.name is required"),
        (CHAT, {"gen_ai.conversation.compacted": False}, "is never false"),
        (CHAT, {"gen_ai.system": "x"}, "gen_ai.system has no place there"),
        (CHAT, {"gen_ai.request.model": "n"}, "should be named 'chat n'"),
        (CHAT, {"otelctx.outcome": None}, "otelctx.outcome is required"),
    ],
)
def test_each_fault_of_a_span_is_found(
    conventions: Any, span: Span, base: dict[str, Any], change: dict[str, Any], complaint: str
) -> None:
    name, kind = {
        id(SERVER): ("GET /{x}", SpanKind.SERVER),
        id(CLIENT): ("GET", SpanKind.CLIENT),
        id(CHAT): ("chat m", SpanKind.INTERNAL),
    }[id(base)]
    made = span(name, kind, {k: v for k, v in (base | change).items() if v is not None})
    assert any(complaint in found for found in conventions.spans([made])), conventions.spans([made])


def test_each_fault_that_is_no_attributes_is_found(conventions: Any, span: Span) -> None:
    for made, complaint in (
        (span("GET /{x}", SpanKind.INTERNAL, SERVER), "the table has no"),
        (span("chat m", SpanKind.SERVER, CHAT), "kind SERVER"),
        (span("queue", SpanKind.CLIENT, {}), "kind CLIENT"),
        (span("GET /{x}", SpanKind.SERVER, SERVER, StatusCode.OK), "OK is the application's"),
        (span("GET /{x}", SpanKind.SERVER, SERVER | {f"otelctx.n{n}": n for n in range(99)}), "104 attributes"),
    ):
        assert any(complaint in found for found in conventions.spans([made])), complaint


@pytest.mark.parametrize(
    ("name", "attributes", "complaint"),
    [
        ("otelctx.evicted", {}, "the table has no event otelctx.evicted"),
        ("otelctx.session.expired", {}, "otelctx.session.expired needs otelctx.reason"),
        ("otelctx.session.expired", {"otelctx.reason": "bored"}, "the reason of otelctx.session.expired is 'bored'"),
        ("otelctx.session.expired", {"otelctx.reason": "idle", "session.id": "s"}, "the table has no session.id"),
        ("otelctx.overflow", {"otelctx.reason": "window", "otelctx.action": "dance"}, "none of the table's"),
        ("otelctx.session.expired", {"otelctx.reason": 1}, "otelctx.reason of otelctx.session.expired is 1"),
        ("otelctx.session.expired", {"otelctx.reason": "idle"}, None),
        ("of.an.application", {"x": 1}, None),
    ],
)
def test_each_fault_of_an_event_is_found(
    conventions: Any, name: str, attributes: dict[str, Any], complaint: str | None
) -> None:
    found = list(conventions.event_of(name, attributes, "span"))
    assert [complaint in one for one in found][:1] == ([] if complaint is None else [True])


@pytest.mark.parametrize(
    ("name", "unit", "attributes", "complaint"),
    [
        ("http.server.request.duration", "ms", {"http.request.method": "GET", "url.scheme": "http"}, "in ms"),
        ("http.server.request.duration", "s", {"http.request.method": "GET"}, "url.scheme is required"),
        ("http.server.request.duration", "s", {"url.path": "/a"}, "url.path has no place there"),
        ("http.server.request.duration", "s", {"http.request.method": "FOO"}, "none of the table's"),
        ("http.server.request.duration", "s", {"session.id": "s"}, "the table has no session.id there"),
        ("http.server.duration", "s", {}, "not in the table"),
        ("otelctx.window.tokens", "{token}", {"otelctx.window.mode": "x"}, "none of the table's"),
        ("otelctx.window.tokens", "{token}", {}, "otelctx.window.mode is required"),
    ],
)
def test_each_fault_of_a_metric_is_found(
    conventions: Any, name: str, unit: str, attributes: dict[str, Any], complaint: str
) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("otelctx")
    meter.create_histogram(name, unit).record(1, attributes)
    found = conventions.metrics(reader.get_metrics_data())
    assert any(complaint in one for one in found), found
