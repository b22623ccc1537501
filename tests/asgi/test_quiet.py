"""Where nobody keeps what would be recorded nothing is made, and context flows as ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.context.current import current_scope
from otelctx.errors import OtelctxError
from otelctx.exchange.node import Node
from otelctx.settings import Settings
from otelctx.telemetry.sinks import sinks

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


class Busy(OtelctxError):
    status = 503


class App:
    """Answers, and remembers where it was."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.span: Any = None
        self.in_scope = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.span, self.in_scope = trace.get_current_span(), current_scope() is not None
        if self.error is not None:
            raise self.error
        await receive()
        lines = [(b"Otelctx-Ack", b"mine"), (b"x-own", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})


async def ask(app: ContextMiddleware, traceparent: bytes = TRACEPARENT.encode()) -> list[Any]:
    out: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        out.append(message)

    headers = [(b"host", b"a.example"), (b"traceparent", traceparent)]
    scope = {"type": "http", "method": "GET", "path": "/", "scheme": "http", "http_version": "1.1", "headers": headers}
    await app(scope, receive, send)
    return out


def disabled() -> dict[str, Any]:
    return {"tracer_provider": NoOpTracerProvider(), "meter_provider": NoOpMeterProvider()}


def of_the_sdk() -> dict[str, Any]:
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    return {"tracer_provider": TracerProvider(shutdown_on_exit=False), "meter_provider": meters}


def unsampled() -> dict[str, Any]:
    return {"tracer_provider": TracerProvider(ALWAYS_OFF, shutdown_on_exit=False), "metrics": False}


QUIET: dict[str, Callable[[], dict[str, Any]]] = {
    "no SDK": disabled,
    "excluded": lambda: {"excluded": "/*", **of_the_sdk()},
    "not sampled, no metrics": unsampled,
}


@pytest.mark.parametrize("options", QUIET.values(), ids=list(QUIET))
async def test_context_flows_and_headers_of_ours_stay_ours(
    options: Callable[[], dict[str, Any]],
) -> None:
    app = App()
    answer = await ask(ContextMiddleware(app, node=Node(Settings()), **options()))
    assert f"{app.span.get_span_context().trace_id:032x}" == TRACE_ID
    assert not app.span.is_recording()
    assert app.in_scope
    assert answer[0]["headers"] == [(b"x-own", b"1")]
    assert [message["body"] for message in answer[1:]] == [b"a", b"b"]
    assert current_scope() is None


@pytest.mark.parametrize(
    ("line", "trace_id"),
    [
        (TRACEPARENT.encode(), int(TRACE_ID, 16)),
        (f"cc{TRACEPARENT[2:]}-later".encode(), int(TRACE_ID, 16)),  # of a version to come
        (b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", 0),
        (b"\xff", 0),
        (b"", 0),
    ],
)
async def test_a_parent_that_is_read_late_is_the_one_that_came(line: bytes, trace_id: int) -> None:
    app = App()
    made = ContextMiddleware(app, node=Node(Settings()), excluded="/*", **of_the_sdk())
    await ask(made, line)
    assert f"0x{trace_id:032x}" in repr(app.span)
    assert app.span.get_span_context().trace_id == trace_id
    assert app.span.get_span_context() is app.span.get_span_context()
    assert app.span.get_span_context().is_remote is bool(trace_id)


@pytest.mark.parametrize("options", QUIET.values(), ids=list(QUIET))
async def test_an_error_of_ours_is_answered_with_its_status(options: Callable[[], dict[str, Any]]) -> None:
    answer = await ask(ContextMiddleware(App(Busy("busy")), node=Node(Settings()), **options()))
    assert answer[0]["status"] == 503


@pytest.mark.parametrize("options", QUIET.values(), ids=list(QUIET))
async def test_any_other_error_comes_out_as_it_is(options: Callable[[], dict[str, Any]]) -> None:
    with pytest.raises(LookupError):
        await ask(ContextMiddleware(App(LookupError()), node=Node(Settings()), **options()))


def test_no_op_providers_keep_nothing_and_the_sdks_keep_all() -> None:
    nothing, all_ = disabled(), of_the_sdk()
    found = sinks(nothing["tracer_provider"], nothing["meter_provider"])
    assert (found.deaf, found.mute) == (True, True)
    found = sinks(all_["tracer_provider"], all_["meter_provider"])
    assert (found.deaf, found.mute) == (False, False)
    found = sinks(nothing["tracer_provider"], all_["meter_provider"])
    assert (found.deaf, found.mute) == (True, False)


@pytest.mark.parametrize("variable", ["true", "TRUE"])
def test_a_disabled_sdk_keeps_nothing(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", variable)
    made = of_the_sdk()
    found = sinks(made["tracer_provider"], made["meter_provider"])
    assert (found.deaf, found.mute) == (True, True)


def test_a_provider_that_is_set_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)  # which a proxy forwards to; another test may have set one
    monkeypatch.setattr(trace, "get_tracer_provider", ProxyTracerProvider)
    monkeypatch.setattr(metrics, "get_meter_provider", NoOpMeterProvider)
    assert sinks(None, None).deaf
    made = of_the_sdk()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made["tracer_provider"])
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: made["meter_provider"])
    found = sinks(None, None)
    assert (found.deaf, found.mute) == (False, False)


def test_a_proxy_that_somebody_has_kept_may_be_heard_any_time() -> None:
    assert not sinks(ProxyTracerProvider(), NoOpMeterProvider()).deaf


async def test_a_header_of_ours_is_taken_out_however_usual_the_others_have_become(rig: Any) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append([name for name, _ in scope["headers"]])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    made = rig(app)
    for headers in ({"x-a": "1"}, {"x-a": "1", "otelctx-foo": "2"}, {"x-a": "1", "OTELCTX": "3"}):
        await made.request(headers=headers)
    assert seen == [[b"x-a"]] * 3
