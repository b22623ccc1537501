"""Every client: one CLIENT span and one duration for each attempt, whichever way it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import urllib3
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from otelctx.context.current import session
from otelctx.context.scope import Scope
from otelctx.exchange.node import Node

asynchronous = pytest.mark.parametrize("driver", ["httpx-async", "httpx2-async", "aiohttp"], indirect=True)


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
    credentials = "" if driver.library.__name__ == "aiohttp" else "REDACTED:REDACTED@"  # aiohttp takes them out itself
    port = int(worker.url.rpartition(":")[2])
    assert (span.name, span.kind, span.status.status_code) == ("POST", SpanKind.CLIENT, StatusCode.UNSET)
    assert span.parent.span_id == parent.get_span_context().span_id
    attributes = dict(span.attributes)
    peer = [attributes.pop(f"network.peer.{name}", None) for name in ("address", "port")]
    if driver.library.__name__ != "aiohttp":  # which lets go of the connection if the body comes with the head
        assert peer == ["127.0.0.1", port]
    assert attributes == {
        "http.request.method": "POST",
        "server.address": "127.0.0.1",
        "server.port": port,
        "url.full": f"http://{credentials}127.0.0.1:{port}/v1/chat?a=1&api_key=REDACTED&b=2",
        "http.response.status_code": 200,
        "network.protocol.version": "1.1",
    }
    (point,) = seen.points("http.client.request.duration")
    assert dict(point.attributes) == {
        "http.request.method": "POST",
        "server.address": "127.0.0.1",
        "server.port": port,
        "http.response.status_code": 200,
        "network.protocol.version": "1.1",
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
    gate = threading.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.to_thread(gate.wait, 60)
        yield b"bc"

    worker.handler = answers(chunks=chunks())
    response = driver.open(driver.client(node()), worker.url)
    assert seen.spans() == []
    gate.set()
    assert driver.read(response) == b"abc"
    assert seen.span().attributes["http.response.status_code"] == 200
    driver.run(response.aclose()) if hasattr(response, "aclose") and driver.asynchronous else response.close()
    assert len(seen.spans()) == len(seen.durations()) == 1


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 204), ("GET", 304), ("POST", 200)])
def test_a_response_without_a_body_has_an_end_too(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, method: str, status: int
) -> None:
    worker.handler = answers(status=status, chunks=[], response_headers=[(b"content-length", b"0")])
    assert driver.request(driver.client(node()), method, worker.url) == (status, b"")
    assert len(seen.spans()) == len(seen.durations()) == 1


@pytest.mark.parametrize("take", [0, 1])
def test_leaving_a_body_early_is_no_error(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, take: int
) -> None:
    worker.handler = answers(chunks=chunked(*[b"x" * 1000] * 50))
    assert len(driver.stream(driver.client(node()), worker.url, take)) == take
    assert seen.span().status.is_unset
    assert ["error.type" in d for d in seen.durations()] == [False]


@pytest.mark.parametrize("take", [0, 1])
def test_an_applications_own_error_is_none_of_the_request(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, take: int
) -> None:
    worker.handler = answers(chunks=chunked(*[b"x" * 1000] * 50))
    client = driver.client(node())
    with pytest.raises(ZeroDivisionError):
        driver.stream(client, worker.url, take, leave=ZeroDivisionError())
    assert seen.span().status.is_unset
    assert ["error.type" in d for d in seen.durations()] == [False]


@pytest.mark.parametrize("other", [TimeoutError, urllib3.exceptions.ProtocolError])
def test_a_request_made_while_another_failure_is_handled_is_no_failure(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, other: type[Exception]
) -> None:
    worker.handler = answers(chunks=chunked(*[b"x" * 1000] * 50))
    client = driver.client(node())
    try:
        raise other("another request's")
    except other:
        driver.stream(client, worker.url, 0)
    assert seen.span().status.is_unset


def test_an_error_in_the_body_is_recorded(driver: Any, worker: Any, node: Callable[..., Node], seen: Any) -> None:
    worker.handler = answers(chunks=chunked(b"a", then=RuntimeError("the server falls over")))
    client = driver.client(node())
    with pytest.raises(driver.raised):
        driver.stream(client, worker.url, None)
    span, (duration,) = seen.span(), seen.durations()
    assert span.attributes["error.type"] == duration["error.type"] == driver.cut
    assert span.status.status_code is StatusCode.ERROR
    assert (span.events[0].name, span.events[0].attributes["exception.type"]) == ("exception", driver.cut)
    assert duration["http.response.status_code"] == 200


def test_a_refused_connection_is_in_the_duration(driver: Any, node: Callable[..., Node], seen: Any) -> None:
    client = driver.client(node())
    with session("s1"), pytest.raises(Exception, match=r"(?i)connect"):
        driver.post(client, "http://127.0.0.1:1/")
    span, (duration,) = seen.span(), seen.durations()
    assert span.attributes["error.type"] == duration["error.type"] == driver.refused
    assert span.status.status_code is StatusCode.ERROR
    assert "http.response.status_code" not in span.attributes


def test_a_head_that_does_not_come_in_time_is_an_error(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any
) -> None:
    gate = threading.Event()

    async def hang(request: Any) -> None:
        await asyncio.to_thread(gate.wait, 60)

    worker.handler = hang
    client = driver.client(node())
    try:
        with pytest.raises(Exception, match=r"(?i)time|^$"):
            driver.post(client, worker.url, timeout=0.3)
    finally:
        gate.set()
    span, (duration,) = seen.span(), seen.durations()
    assert span.attributes["error.type"] == duration["error.type"] == driver.late
    assert "http.response.status_code" not in duration


def test_a_body_that_does_not_come_in_time_is_an_error(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any
) -> None:
    gate = threading.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.to_thread(gate.wait, 60)

    worker.handler = answers(chunks=chunks())
    client = driver.client(node())
    try:
        with pytest.raises(Exception, match=r"(?i)time|^$"):
            driver.post(client, worker.url, timeout=3)  # the head must come in that time, whatever else is going on
    finally:
        gate.set()
    span, (duration,) = seen.span(), seen.durations()
    assert "Timeout" in span.attributes["error.type"]
    assert (span.status.status_code, duration["http.response.status_code"]) == (StatusCode.ERROR, 200)


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
        async def post() -> None:
            await client.post(worker.url)

        task = asyncio.create_task(post())
        assert await asyncio.to_thread(arrived.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    driver.run(cancelled())
    assert seen.span().status.is_unset
    assert ["error.type" in d for d in seen.durations()] == [False]
    assert [r for r in caplog.records if r.name.startswith("opentelemetry")] == []


def test_a_response_that_is_dropped_unread_still_ends(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    gate = threading.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.to_thread(gate.wait, 60)

    worker.handler = answers(chunks=chunks())
    response = driver.open(driver.client(node()), worker.url)
    assert seen.spans() == []
    del response
    driver.forget()
    eventually(lambda: len(seen.spans()) == 1)
    gate.set()
    assert seen.span().status.is_unset
    assert len(seen.durations()) == 1


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
    """Whether it was there before the client or came after it, and whether it sits around us or inside."""
    client = driver.client(node())
    with driver.instrumented():
        other = driver.client(node())
        assert driver.post(client, worker.url).status == driver.post(other, worker.url).status == 200
    assert [span.instrumentation_scope.name for span in seen.spans()] == ["otelctx", "otelctx"]
    for request in worker.seen:
        assert len(request.values("traceparent")) == len(request.values("otelctx")) == 1
    parents = [request.values("traceparent")[0].split("-")[2] for request in worker.seen]
    assert parents == [format(span.context.span_id, "016x") for span in seen.spans()]


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
