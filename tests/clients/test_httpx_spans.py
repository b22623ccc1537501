"""httpx and httpx2, sync and async: one CLIENT span and one duration for each attempt, whichever way it ends."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from otelctx.context.current import session
from otelctx.context.scope import Scope
from otelctx.exchange.node import Node

asynchronous = pytest.mark.parametrize("driver", ["httpx-async", "httpx2-async"], indirect=True)


def chunked(*chunks: bytes, then: BaseException | None = None) -> AsyncIterator[bytes]:
    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk
            await asyncio.sleep(0)
        if then is not None:
            raise then

    return stream()


def answers(**attributes: Any) -> Callable[[Any], None]:
    def handler(request: Any) -> None:
        for name, value in attributes.items():
            setattr(request, name, value)

    return handler


def test_a_span_says_what_the_conventions_ask(driver: Any, worker: Any, node: Callable[..., Node], seen: Any) -> None:
    client = driver.client(node())
    url = worker.url.replace("http://", "http://user:hunter2@") + "/v1/chat?a=1&api_key=hunter2&b=2"
    with trace.use_span(seen.tracers.get_tracer("test").start_span("parent"), end_on_exit=True) as parent:
        driver.post(client, url)
    span, _ = seen.spans()
    port = int(worker.url.rpartition(":")[2])
    assert (span.name, span.kind, span.status.status_code) == ("POST", SpanKind.CLIENT, StatusCode.UNSET)
    assert span.parent.span_id == parent.get_span_context().span_id
    assert dict(span.attributes) == {
        "http.request.method": "POST",
        "server.address": "127.0.0.1",
        "server.port": port,
        "url.full": f"http://REDACTED:REDACTED@127.0.0.1:{port}/v1/chat?a=1&api_key=REDACTED&b=2",
        "http.response.status_code": 200,
        "network.protocol.version": "1.1",
    }
    (point,) = seen.points("http.client.request.duration")
    assert dict(point.attributes) == {
        "http.request.method": "POST",
        "server.address": "127.0.0.1",
        "server.port": port,
        "http.response.status_code": 200,
    }
    elapsed = (span.end_time - span.start_time) / 1e9
    assert point.sum == pytest.approx(elapsed, abs=0.05)
    assert point.exemplars[0].span_id == span.context.span_id


@pytest.mark.parametrize("status", [404, 503])
def test_an_error_status_is_an_error_of_the_client_span(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, status: int
) -> None:
    worker.handler = answers(status=status)
    driver.post(driver.client(node()), worker.url)
    assert (seen.span().status.status_code, seen.span().attributes["error.type"]) == (StatusCode.ERROR, str(status))
    assert [d["error.type"] for d in seen.durations()] == [str(status)]


def test_a_method_that_nobody_knows_is_one_of_many(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any
) -> None:
    driver.request(driver.client(node()), "FOO1", worker.url)
    span = seen.span()
    assert (span.name, span.attributes["http.request.method"]) == ("HTTP", "_OTHER")
    assert span.attributes["http.request.method_original"] == "FOO1"


def test_a_span_lasts_to_the_end_of_the_body(driver: Any, worker: Any, node: Callable[..., Node], seen: Any) -> None:
    worker.handler = answers(chunks=chunked(b"a", b"b", b"c"))
    client = driver.client(node())
    response = driver.send(client, worker.url)
    assert seen.spans() == []
    assert (driver.run(response.aread()) if driver.asynchronous else response.read()) == b"abc"
    assert seen.span().attributes["http.response.status_code"] == 200
    driver.run(response.aclose()) if driver.asynchronous else response.close()
    assert len(seen.spans()) == len(seen.durations()) == 1


@pytest.mark.parametrize("take", [0, 1])
def test_leaving_a_body_early_is_no_error(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, take: int
) -> None:
    worker.handler = answers(chunks=chunked(*[b"x" * 1000] * 50))
    assert len(driver.stream(driver.client(node()), worker.url, take)) == take
    assert seen.span().status.is_unset
    assert ["error.type" in d for d in seen.durations()] == [False]


def test_an_error_in_the_body_is_recorded(driver: Any, worker: Any, node: Callable[..., Node], seen: Any) -> None:
    worker.handler = answers(chunks=chunked(b"a", then=RuntimeError("the server falls over")))
    with pytest.raises(driver.library.RemoteProtocolError):
        driver.stream(driver.client(node()), worker.url, None)
    span, (duration,) = seen.span(), seen.durations()
    expected = f"{driver.library.__name__}.RemoteProtocolError"
    assert span.attributes["error.type"] == duration["error.type"] == expected
    assert span.status.status_code is StatusCode.ERROR
    assert (span.events[0].name, span.events[0].attributes["exception.type"]) == ("exception", expected)
    assert duration["http.response.status_code"] == 200


def test_a_refused_connection_is_in_the_duration(driver: Any, node: Callable[..., Node], seen: Any) -> None:
    with session("s1"), pytest.raises(driver.library.ConnectError):
        driver.post(driver.client(node()), "http://127.0.0.1:1/")
    span, (duration,) = seen.span(), seen.durations()
    assert span.attributes["error.type"] == duration["error.type"] == f"{driver.library.__name__}.ConnectError"
    assert span.status.status_code is StatusCode.ERROR
    assert "http.response.status_code" not in span.attributes


@asynchronous
def test_a_cancelled_request_is_counted_and_no_error(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    arrived = threading.Event()

    async def hang(request: Any) -> None:
        arrived.set()
        await asyncio.sleep(0.2)

    worker.handler = hang
    client = driver.client(node())

    async def cancelled() -> None:
        task = asyncio.create_task(client.post(worker.url))
        assert await asyncio.to_thread(arrived.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    driver.run(cancelled())
    assert seen.span().status.is_unset
    assert ["error.type" in d for d in seen.durations()] == [False]
    assert [r for r in caplog.records if r.name.startswith("opentelemetry")] == []


@asynchronous
def test_a_coroutine_that_is_thrown_away_leaves_no_trouble(
    driver: Any, node: Callable[..., Node], seen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is closed in another context than it ran in: there is nothing to detach, and nothing to complain of."""

    class Never(driver.library.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            class Forever:
                def __await__(self) -> Any:
                    yield

            await Forever()

    client = driver.client(node(), transport=Never())
    coroutine = client.post("http://localhost/")
    coroutine.send(None)
    import contextvars

    contextvars.Context().run(coroutine.close)
    otel_context.attach(otel_context.Context())
    assert seen.span().status.is_unset
    assert len(seen.durations()) == 1
    assert [r for r in caplog.records if r.name.startswith("opentelemetry")] == []


def test_a_response_that_is_dropped_unread_still_ends(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    worker.handler = answers(chunks=chunked(*[b"x" * 1000] * 50))
    client = driver.client(node())
    response = driver.send(client, worker.url)
    assert seen.spans() == []
    del response
    gc.collect()
    eventually(lambda: len(seen.spans()) == 1)
    assert seen.span().status.is_unset
    assert len(seen.durations()) == 1


def test_a_response_that_came_whole_ends_at_once(driver: Any, node: Callable[..., Node], seen: Any) -> None:
    """Nothing reads or closes it a second time."""
    mock = driver.library.MockTransport(lambda request: driver.library.Response(200, json={"a": 1}))
    response = driver.post(driver.client(node(), transport=mock), "http://localhost/")
    assert response.json() == {"a": 1}
    assert len(seen.spans()) == len(seen.durations()) == 1


@asynchronous
@pytest.mark.parametrize("contrib", [False, True])
def test_an_app_in_this_process_may_call_on(
    driver: Any, node: Callable[..., Node], seen: Any, contrib: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of another instrumentation on the way in is no reason for ours on the way on."""
    if contrib:
        monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.httpx", ModuleType("contrib"))
    else:
        monkeypatch.delitem(sys.modules, "opentelemetry.instrumentation.httpx", raising=False)
    inner = driver.client(
        node(), transport=driver.library.MockTransport(lambda request: driver.library.Response(200, content=b"in"))
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = (await inner.post("http://inner/")).content
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    outer = driver.client(node(), transport=driver.library.ASGITransport(app))
    assert driver.post(outer, "http://outer/").content == b"in"
    called, caller = seen.spans()
    assert called.parent.span_id == caller.context.span_id


# living together with others


def test_where_instrumentation_is_suppressed_nothing_is_done(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, chat: Scope
) -> None:
    client = driver.client(node())
    for name in ("_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY"):
        token = otel_context.attach(otel_context.set_value(getattr(otel_context, name), True))
        try:
            driver.post(client, worker.url)
        finally:
            otel_context.detach(token)
    assert seen.spans() == seen.durations() == []
    assert [request.values("traceparent") + request.values("otelctx") for request in worker.seen] == [[], []]


def test_contribs_instrumentation_makes_no_second_span(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, chat: Scope
) -> None:
    from opentelemetry.instrumentation.httpx import HTTPX2ClientInstrumentor, HTTPXClientInstrumentor

    other = HTTPXClientInstrumentor() if driver.library.__name__ == "httpx" else HTTPX2ClientInstrumentor()
    client = driver.client(node())
    other.instrument(tracer_provider=seen.tracers)
    try:
        driver.post(client, worker.url)
    finally:
        other.uninstrument()
    assert [span.instrumentation_scope.name for span in seen.spans()] == ["otelctx"]
    assert len(worker.seen[0].values("traceparent")) == len(worker.seen[0].values("otelctx")) == 1


def test_without_contrib_nobody_is_suppressed(
    driver: Any, node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app in this process behind an ASGI transport may be instrumented by whatever it likes."""
    key = otel_context._SUPPRESS_HTTP_INSTRUMENTATION_KEY
    asked: list[object] = []

    def answer(request: Any) -> Any:
        asked.append(otel_context.get_value(key))
        return driver.library.Response(200)

    client = driver.client(node(), transport=driver.library.MockTransport(answer))
    monkeypatch.delitem(sys.modules, "opentelemetry.instrumentation.httpx", raising=False)
    driver.post(client, "http://localhost/")
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.httpx", ModuleType("contrib"))
    driver.post(client, "http://localhost/")
    assert asked == [None, True]


# what is counted


def test_frames_acks_and_bytes_are_counted(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, chat: Scope
) -> None:
    client = driver.client(node())
    for _ in range(4):
        driver.post(client, worker.url)
    frames = {
        (p.attributes["otelctx.frame.kind"], p.attributes["otelctx.frame.direction"]): p.value
        for p in seen.points("otelctx.context.frames")
    }
    assert frames == {("full", "sent"): 3, ("ref", "sent"): 1, ("ack", "received"): 4}
    sizes = {p.attributes["otelctx.frame.kind"]: p.value for p in seen.points("otelctx.context.frame.bytes")}
    assert sizes["ref"] == sum(len(v) for v in worker.seen[3].values("otelctx"))
    assert sizes["ack"] == sum(len(v) for r in worker.seen for n, v in r.response_headers if n == b"otelctx-ack")


def test_an_ack_that_comes_too_late_is_counted(driver: Any, worker: Any, node: Callable[..., Node], seen: Any) -> None:
    from otelctx.context.current import USAGE_OUTPUT

    worker.handler = lambda request: request.scope.record(USAGE_OUTPUT.spec, 1)
    with session("s1") as scope:
        scope.end()
        driver.post(driver.client(node()), worker.url)
    assert [p.value for p in seen.points("otelctx.context.late")] == [1]


def test_context_that_did_not_arrive_is_told_on_the_span(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, chat: Scope
) -> None:
    """A REF went to a server that no longer reads it."""
    client = driver.client(node())
    for _ in range(3):
        driver.post(client, worker.url)
    worker.aware = False
    driver.post(client, worker.url)
    assert [event.name for event in seen.spans()[-1].events] == ["otelctx.context.lost"]
    driver.post(client, worker.url)
    assert [event.name for event in seen.spans()[-1].events] == []
