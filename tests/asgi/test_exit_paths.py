"""Each way out of a request: one span, one duration, the right attributes, and nothing left for the next request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from otelctx import errors
from otelctx.context.current import current_scope

BASE = {"http.request.method": "GET", "url.scheme": "http", "network.protocol.version": "1.1"}


class Odd(Exception):
    """An application's own error."""


ODD = f"{Odd.__module__}.Odd"


async def returns(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def not_found(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"no"})


async def unavailable(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 503, "headers": []})
    await send({"type": "http.response.body", "body": b"no"})


async def silent(scope: Any, receive: Any, send: Any) -> None:
    pass


async def half(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x", "more_body": True})


async def raises(scope: Any, receive: Any, send: Any) -> None:
    raise Odd("before the start")


async def raises_late(scope: Any, receive: Any, send: Any) -> None:
    await half(scope, receive, send)
    raise Odd("in the stream")


async def rendered_by_an_inner_layer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 500, "headers": []})
    await send({"type": "http.response.body", "body": b"Internal Server Error"})
    raise Odd("rendered, and raised again for the log")


async def cancelled(scope: Any, receive: Any, send: Any) -> None:
    raise asyncio.CancelledError


async def cancelled_late(scope: Any, receive: Any, send: Any) -> None:
    await half(scope, receive, send)
    raise asyncio.CancelledError


async def interrupted(scope: Any, receive: Any, send: Any) -> None:
    raise KeyboardInterrupt


async def group(scope: Any, receive: Any, send: Any) -> None:
    raise BaseExceptionGroup("tasks", [Odd("one"), asyncio.CancelledError()])


@pytest.mark.parametrize(
    ("app", "raised", "status", "error", "ended", "gone"),
    [
        (returns, None, 204, None, StatusCode.UNSET, None),
        (not_found, None, 404, None, StatusCode.UNSET, None),
        (unavailable, None, 503, "503", StatusCode.ERROR, None),
        (silent, None, 500, "500", StatusCode.ERROR, None),
        (half, None, 200, "incomplete_response", StatusCode.ERROR, None),
        (raises, Odd, 500, ODD, StatusCode.ERROR, None),
        (raises_late, Odd, 200, ODD, StatusCode.ERROR, None),
        (rendered_by_an_inner_layer, Odd, 500, ODD, StatusCode.ERROR, None),
        (cancelled, asyncio.CancelledError, None, None, StatusCode.UNSET, True),
        (cancelled_late, asyncio.CancelledError, 200, None, StatusCode.UNSET, True),
        (interrupted, KeyboardInterrupt, 500, "KeyboardInterrupt", StatusCode.ERROR, None),
        (group, BaseExceptionGroup, 500, "BaseExceptionGroup", StatusCode.ERROR, None),
    ],
)
async def test_every_exit_path_has_one_span_and_one_duration(
    rig: Any, app: Any, raised: Any, status: int | None, error: str | None, ended: StatusCode, gone: bool | None
) -> None:
    r = rig(app)
    before = otel_context.get_current()
    if raised is None:
        await r.request()
    else:
        with pytest.raises(raised):
            await r.request()
    expected = dict(BASE)
    if status is not None:
        expected["http.response.status_code"] = status  # type: ignore[assignment]  # values differ in type
    if error is not None:
        expected["error.type"] = error
    assert r.point() == expected
    span = r.span
    assert (span.name, span.kind, span.status.status_code) == ("GET", SpanKind.SERVER, ended)
    assert span.attributes.get("http.response.status_code") == status
    assert span.attributes.get("error.type") == error
    assert span.attributes.get("otelctx.client.disconnected") is gone
    assert otel_context.get_current() is before, "nothing is left for the next request"
    assert current_scope() is None


async def test_an_exception_is_an_event_on_the_span_bounded_and_encodable(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise Odd("\ud800" + "x" * 100_000)

    r = rig(app)
    with pytest.raises(Odd):
        await r.request()
    (event,) = r.span.events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == ODD
    for value in event.attributes.values():
        assert len(value.encode()) <= 16_384


@pytest.mark.parametrize(
    ("error", "status", "code", "header"),
    [
        (errors.TokenLimitExceeded("too long", n_prompt_tokens=9000), 400, "context_length_exceeded", None),
        (errors.StreamRequired("stream it"), 422, "stream_required", None),
        (errors.SessionNotFound("no such session"), 404, "session_not_found", None),
        (errors.SessionBusy("busy"), 409, "session_busy", None),
        (errors.Overloaded("full", retry_after=7), 503, "overloaded", ("retry-after", "7")),
        (errors.PolicyViolation("no"), 403, "policy_violation", None),
    ],
)
async def test_an_error_of_ours_is_answered_in_openais_shape(
    rig: Any, error: errors.OtelctxError, status: int, code: str, header: tuple[str, str] | None
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise error

    r = rig(app)
    response = await r.request("POST", "/v1/chat/completions")
    body = json.loads(response.body)
    assert response.status == status
    assert body == error.body()
    assert body["error"]["code"] == code
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["content-length"]) == len(response.body)
    if header is not None:
        assert response.headers[header[0]] == header[1]
    expected_error = f"{type(error).__module__}.{type(error).__name__}" if status >= 500 else None
    assert r.point().get("error.type") == expected_error
    assert r.span.attributes.get("error.type") == expected_error
    assert r.span.status.status_code is (StatusCode.ERROR if status >= 500 else StatusCode.UNSET)


@pytest.mark.parametrize("started", [True, False])
async def test_an_error_that_can_not_be_answered_is_raised(rig: Any, started: bool) -> None:
    """One without a status, or one after the response has started: it is the server's to deal with."""
    error = errors.SessionBusy("busy") if started else errors.StaleView("a bug")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if started:
            await half(scope, receive, send)
        raise error

    r = rig(app)
    with pytest.raises(type(error)):
        await r.request()
    assert r.point()["error.type"] == f"otelctx.errors.{type(error).__name__}"


async def test_work_after_the_last_byte_is_not_the_request(rig: Any, ok: Any) -> None:
    """The span has ended with the last byte, and its duration with it; later work gets a linked span of its own."""
    tracer: Any = None
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)
        seen.extend(r.spans)
        assert trace.get_current_span().is_recording()
        with tracer.start_as_current_span("mail"):
            pass

    r = rig(app)
    tracer = r.tracers.get_tracer("app")
    await r.request()
    (request,) = seen
    _, mail, background = r.spans
    assert r.spans[0] is request
    assert background.name == "GET background"
    assert mail.parent.span_id == background.context.span_id
    assert background.parent is None
    assert background.context.trace_id != request.context.trace_id
    assert [link.context.span_id for link in background.links] == [request.context.span_id]


async def test_without_work_after_the_last_byte_there_is_no_second_span(rig: Any, ok: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)
        assert trace.get_current_span().is_recording()

    r = rig(app)
    await r.request()
    assert len(r.spans) == 1


async def test_an_exception_after_the_last_byte_is_on_the_linked_span(rig: Any, ok: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)
        raise Odd("in the background")

    r = rig(app)
    with pytest.raises(Odd):
        await r.request()
    request, background = r.spans
    assert (request.status.status_code, "error.type" in request.attributes) == (StatusCode.UNSET, False)
    assert (background.status.status_code, background.attributes["error.type"]) == (StatusCode.ERROR, ODD)
    assert "error.type" not in r.point()


async def test_a_task_that_outlives_the_request_does_not_leave_a_span_open(rig: Any, ok: Any) -> None:
    done = asyncio.Event()

    async def later() -> None:
        await done.wait()
        with r.tracers.get_tracer("app").start_as_current_span("late"):
            pass

    tasks: list[asyncio.Task[None]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        tasks.append(asyncio.create_task(later()))
        await ok(send)

    r = rig(app)
    await r.request()
    assert len(r.spans) == 1
    done.set()
    await tasks[0]
    background, late = r.spans[1:]
    assert late.parent.span_id == background.context.span_id


async def test_an_unsampled_request_has_no_background_trace_either(rig: Any, ok: Any) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)
        with r.tracers.get_tracer("app").start_as_current_span("mail"):
            pass

    r = rig(app)
    await r.request(headers={"traceparent": parent})
    assert r.spans == []
    assert r.point()["http.response.status_code"] == 200, "metrics do not depend on sampling"
