"""Streams, disconnects and excluded paths."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace import StatusCode
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from otelctx.asgi.exclude import matcher
from otelctx.asgi.stream import Progress
from otelctx.context.current import ContextKey, current_scope

TIER = ContextKey("asgi.stream.tier", str)
PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


async def stream(send: Any, chunks: int = 3) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for n in range(chunks):
        await send({"type": "http.response.body", "body": b"x", "more_body": n < chunks - 1})


async def test_a_stream_has_one_span_and_no_span_for_a_message(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await stream(send, 65)

    r = rig(app)
    await r.request()
    assert r.span.attributes["otelctx.response.chunks"] == 65
    assert r.span.attributes["otelctx.response.time_to_first_byte"] >= 0


async def test_a_plain_response_says_nothing_of_chunks(rig: Any, ok: Any) -> None:
    r = rig(lambda scope, receive, send: ok(send))
    await r.request()
    assert "otelctx.response.chunks" not in r.span.attributes


async def test_the_span_ends_with_the_last_chunk_not_with_the_response_head(rig: Any) -> None:
    open_at: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def counting(message: Any) -> None:
            await send(message)
            open_at.append(len(r.spans))

        await stream(counting)

    r = rig(app)
    await r.request()
    assert open_at == [0, 0, 0, 1]


async def test_a_disconnect_seen_by_receive_is_no_error(rig: Any) -> None:
    """Starlette's response cancels its body and returns; there is no exception to see."""
    gone = asyncio.Event()

    async def endpoint(request: Request) -> StreamingResponse:
        async def body() -> Any:
            yield "one"
            gone.set()
            await asyncio.sleep(3600)

        return StreamingResponse(body())

    async def receive() -> Any:
        if not gone.is_set():
            await gone.wait()
        return {"type": "http.disconnect"}

    r = rig(Starlette(routes=[Route("/", endpoint)]))
    # Servers that say 2.4 raise from send instead.
    await r.request(receive=receive, asgi={"version": "3.0", "spec_version": "2.3"})
    assert r.span.attributes["otelctx.client.disconnected"] is True
    assert r.span.status.status_code is StatusCode.UNSET
    assert "error.type" not in r.point()
    assert r.point()["http.response.status_code"] == 200


async def test_a_disconnect_raised_by_send_is_no_error_and_reaches_the_server(rig: Any) -> None:
    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            raise OSError("broken pipe")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await stream(send)

    r = rig(app)
    with pytest.raises(OSError, match="broken pipe"):
        await r.request(send=send)
    assert r.span.attributes["otelctx.client.disconnected"] is True
    assert (r.span.status.status_code, r.span.events) == (StatusCode.UNSET, ())
    assert "error.type" not in r.point()


async def test_starlettes_clientdisconnect_is_no_error(rig: Any) -> None:
    async def endpoint(request: Request) -> StreamingResponse:
        async def body() -> Any:
            yield "one"
            yield "two"

        return StreamingResponse(body())

    async def send(message: Any) -> None:
        raise OSError

    r = rig(Starlette(routes=[Route("/", endpoint)]))
    with pytest.raises(ClientDisconnect):
        await r.request(send=send)
    assert r.span.status.status_code is StatusCode.UNSET
    assert "error.type" not in r.point()


async def test_a_bug_after_a_disconnect_is_still_an_error(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()
        raise KeyError("bug")

    r = rig(app)
    with pytest.raises(KeyError):
        await r.request()
    assert (r.point()["error.type"], r.point()["http.response.status_code"]) == ("KeyError", 500)


async def test_a_disconnect_after_the_last_byte_is_nothing(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await stream(send)
        assert (await receive())["type"] == "http.disconnect"

    r = rig(app)
    await r.request()
    assert "otelctx.client.disconnected" not in r.span.attributes


async def test_an_oserror_of_work_after_the_last_byte_is_not_taken_for_a_disconnect(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await stream(send)
        await receive()
        raise OSError("disk full")

    r = rig(app)
    with pytest.raises(OSError, match="disk full"):
        await r.request()
    assert r.spans[1].attributes["error.type"] == "OSError"


async def test_a_client_that_leaves_before_any_answer_is_no_server_error(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()

    r = rig(app)
    await r.request()
    assert r.span.attributes["otelctx.client.disconnected"] is True
    assert "http.response.status_code" not in r.span.attributes
    assert {"error.type", "http.response.status_code"}.isdisjoint(r.point())


async def test_cancelling_the_request_is_passed_on(rig: Any) -> None:
    started = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        started.set()
        await asyncio.sleep(3600)

    r = rig(app)
    task = asyncio.create_task(r.request())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert r.span.attributes["otelctx.client.disconnected"] is True


async def test_requests_at_once_do_not_see_each_other(rig: Any, ok: Any) -> None:
    both = asyncio.Barrier(2)
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        TIER.set(scope["path"])
        await both.wait()
        seen[scope["path"]] = (TIER.get(), trace.get_current_span().get_span_context().span_id)
        await ok(send)

    r = rig(app)
    await asyncio.gather(r.request("GET", "/a"), r.request("GET", "/b"))
    assert {path: value[0] for path, value in seen.items()} == {"/a": "/a", "/b": "/b"}
    assert seen["/a"][1] != seen["/b"][1]


async def test_an_active_request_is_counted_while_its_body_runs(rig: Any) -> None:
    active: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        active.extend(p.value for p in r.points("http.server.active_requests"))
        await stream(send)
        active.extend(p.value for p in r.points("http.server.active_requests"))

    r = rig(app)
    await r.request()
    assert active == [1, 0]


async def test_without_metrics_there_is_a_span_alone(rig: Any, ok: Any) -> None:
    r = rig(lambda scope, receive, send: ok(send), metrics=False)
    await r.request()
    assert r.span.name == "GET"
    assert r.points("http.server.request.duration") == []


# excluded paths


@pytest.mark.parametrize("error", [False, True])
async def test_an_excluded_path_records_nothing_and_carries_context_on(rig: Any, ok: Any, error: bool) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(trace.format_span_id(trace.get_current_span().get_span_context().span_id))
        assert current_scope() is not None
        if error:
            raise ValueError
        await ok(send)

    r = rig(app, excluded=["/health"])
    with r.tracers.get_tracer("x").start_as_current_span("stale"):
        if error:
            with pytest.raises(ValueError):
                await r.request("GET", "/health", PARENT)
        else:
            await r.request("GET", "/health", PARENT)
    assert seen == ["b7ad6b7169203331"]
    assert [s.name for s in r.spans] == ["stale"]
    assert r.points("http.server.request.duration") == []


@pytest.mark.parametrize(
    ("patterns", "hits", "misses"),
    [
        ("/health", ["/health"], ["/healthy-users", "/health/", "/x/health", "/"]),
        (["/static/*"], ["/static/", "/static/a/b.css"], ["/static", "/a/static/"]),
        (["/v?/health*", "/a[bc]"], ["/v1/health", "/v2/healthz", "/ab"], ["/v10/health", "/ad"]),
        (["/x", "/y/*", "/*/z"], ["/x", "/y/1", "/q/z"], ["/xx", "/z"]),
    ],
)
def test_excluded_paths_are_exact_prefixes_or_globs(patterns: Any, hits: list[str], misses: list[str]) -> None:
    excluded = matcher(patterns)
    assert excluded is not None
    assert [p for p in hits + misses if excluded(p)] == hits


def test_nothing_excluded_costs_nothing() -> None:
    assert matcher(()) is None


# the table of messages


_message = st.one_of(
    st.builds(lambda t: {"type": "http.response.start", "status": 200, "trailers": t}, st.booleans()),
    st.builds(lambda m: {"type": "http.response.body", "more_body": m}, st.booleans()),
    st.builds(lambda m: {"type": "http.response.zerocopysend", "more_body": m}, st.booleans()),
    st.just({"type": "http.response.pathsend", "path": "/f"}),
    st.builds(lambda m: {"type": "http.response.trailers", "more_trailers": m}, st.booleans()),
    st.just({"type": "http.response.debug"}),
)


@given(st.lists(_message, max_size=12))
def test_a_response_completes_once_and_stays_complete(messages: list[dict[str, Any]]) -> None:
    progress = Progress()
    complete = False
    for message in messages:
        complete = progress.see(message) or complete
        assert progress.complete is complete
    chunks = ("http.response.body", "http.response.zerocopysend", "http.response.pathsend")
    assert progress.chunks == sum(m["type"] in chunks for m in messages)


@pytest.mark.parametrize(
    ("messages", "complete"),
    [
        ([{"type": "http.response.body"}], True),
        ([{"type": "http.response.body", "more_body": True}], False),
        ([{"type": "http.response.pathsend", "path": "/f"}], True),
        ([{"type": "http.response.trailers"}], True),
    ],
)
@pytest.mark.parametrize("trailers", [False, True])
def test_with_trailers_the_body_is_not_the_end(messages: Any, complete: bool, trailers: bool) -> None:
    progress = Progress()
    progress.see({"type": "http.response.start", "status": 200, "trailers": trailers})
    for message in messages:
        progress.see(message)
    body = "trailers" not in messages[0]["type"]
    assert progress.complete is (complete and not (trailers and body))


# servers of an ASGI before 2.4 say that their send does nothing once the client has gone; nothing is built on that


@pytest.mark.parametrize("version", ["2.0", "2.3", "2.4", "3.0", None])
async def test_a_stream_is_told_alike_of_every_server(rig: Any, version: str | None) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await stream(send, 5)

    r = rig(app)
    asgi = {"version": "3.0"} if version is None else {"version": "3.0", "spec_version": version}
    response = await r.request(asgi=asgi)
    assert response.body == b"xxxxx"
    assert r.span.attributes["otelctx.response.chunks"] == 5
    assert r.point()["http.response.status_code"] == 200


@pytest.mark.parametrize("version", ["2.3", "2.4"])
async def test_a_stream_that_stops_half_way_is_told_alike_of_every_server(rig: Any, version: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})

    r = rig(app)
    await r.request(asgi={"version": "3.0", "spec_version": version})
    assert r.point()["error.type"] == "incomplete_response"
    assert r.span.attributes["otelctx.response.chunks"] == 3


@pytest.mark.parametrize("message", ["http.response.start", "http.response.body"])
async def test_an_oserror_from_an_older_server_is_a_disconnect_as_well(rig: Any, message: str) -> None:
    async def send(sent: Any) -> None:
        if sent["type"] == message:
            raise OSError("broken pipe")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await stream(send)

    r = rig(app)
    with pytest.raises(OSError, match="broken pipe"):
        await r.request(send=send, asgi={"version": "3.0", "spec_version": "2.3"})
    assert r.span.attributes["otelctx.client.disconnected"] is True
    assert "error.type" not in r.point()
