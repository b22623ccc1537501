"""Samplers, span processors, exporters and meters are anybody's code: whatever they raise, no request fails by it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from otelctx.asgi.passing import EXCHANGE
from otelctx.context.current import current_scope
from otelctx.telemetry import failure

PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


class Broken(Exception):
    """Of somebody else."""


def fails(*args: object, **kwargs: object) -> Any:
    raise Broken


class FailingSampler(Sampler):
    should_sample = fails

    def get_description(self) -> str:
        return "fails"


class FailingStart(SpanProcessor):
    on_start = fails


class FailingEnd(SpanProcessor):
    on_end = fails


class FailingExporter(SpanExporter):
    export = fails


def provider(processor: SpanProcessor | None, sampler: Sampler | None = None) -> TracerProvider:
    made = TracerProvider(sampler, shutdown_on_exit=False)
    if processor is not None:
        made.add_span_processor(processor)
    return made


FAILING = {
    "sampler": lambda: provider(None, FailingSampler()),
    "on_start": lambda: provider(FailingStart()),
    "on_end": lambda: provider(FailingEnd()),
    "exporter": lambda: provider(SimpleSpanProcessor(FailingExporter())),
}


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "_told", set())


@pytest.fixture(params=FAILING.values(), ids=list(FAILING))
def tracers(request: Any) -> TracerProvider:
    made: TracerProvider = request.param()
    return made


def complaints(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.exc_info is not None and r.exc_info[0] is Broken]


async def test_a_request_is_answered_and_leaves_nothing(
    rig: Any, ok: Any, tracers: TracerProvider, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope[EXCHANGE] is not None, current_scope() is not None))
        await ok(send)

    r = rig(app)
    r.app = type(r.app)(app, tracer_provider=tracers, meter_provider=r.meters)
    for _ in range(3):
        assert (await r.request("GET", "/", PARENT)).status == 200
        assert EXCHANGE not in r.last_scope
        assert current_scope() is None
        assert not trace.get_current_span().get_span_context().is_valid
    assert seen == [(True, True)] * 3
    assert all(active.value == 0 for active in r.points("http.server.active_requests"))
    assert complaints(caplog)


@pytest.mark.parametrize("kind", ["sampler", "on_start", "on_end"])
async def test_it_is_told_once(rig: Any, ok: Any, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    r = rig(lambda scope, receive, send: ok(send))
    r.app = type(r.app)(r.app.app, tracer_provider=FAILING[kind](), meter_provider=r.meters)
    for _ in range(3):
        await r.request()
    assert len(complaints(caplog)) == 1


async def test_an_error_of_the_application_stays_what_it_is(rig: Any, tracers: TracerProvider) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("its own")

    r = rig(app)
    r.app = type(r.app)(app, tracer_provider=tracers, meter_provider=r.meters)
    with pytest.raises(LookupError, match="its own"):
        await r.request()
    assert EXCHANGE not in r.last_scope


async def test_a_websocket_is_served(rig: Any, tracers: TracerProvider) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})

    r = rig(app)
    r.app = type(r.app)(app, tracer_provider=tracers, meter_provider=r.meters)
    out = await r.websocket("/", [])
    assert [message["type"] for message in out.messages] == ["websocket.accept", "websocket.close"]


async def test_work_after_the_last_byte_goes_on(rig: Any, ok: Any, tracers: TracerProvider) -> None:
    done: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)
        trace.get_current_span().set_attribute("late", True)
        done.append(True)

    r = rig(app)
    r.app = type(r.app)(app, tracer_provider=tracers, meter_provider=r.meters)
    await r.request()
    assert done == [True]


async def test_a_measurement_that_fails_is_none(rig: Any, ok: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    r = rig(lambda scope, receive, send: ok(send))
    await r.request()
    sinks = r.app._outlet.now()
    monkeypatch.setattr(sinks.instruments, "http_server_duration", type("Histogram", (), {"record": fails})())
    assert (await r.request()).status == 200
    assert len(r.spans) == 2
    assert all(active.value == 0 for active in r.points("http.server.active_requests"))


async def test_trailers_lose_headers_of_ours_as_a_head_does(rig: Any) -> None:
    lines = [(b"x-own", b"1"), (b"otelctx-ack", b"mine"), (b"OTELCTX", b"x")]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(lines), "trailers": True})
        await send({"type": "http.response.body", "body": b""})
        await send({"type": "http.response.trailers", "headers": list(lines)})

    for options in ({}, {"excluded": "/*"}):
        for headers in (PARENT, {**PARENT, "baggage": "a=b"}):
            out = await rig(app, **options).request("GET", "/", headers)
            assert [m["headers"] for m in out.messages if "headers" in m] == [[(b"x-own", b"1")]] * 2
