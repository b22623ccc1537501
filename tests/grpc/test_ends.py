"""The ways a call can end before its time, seen from both sides; and who else may trace it."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from threading import Event
from typing import Any

import grpc
import grpc.experimental
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from otelctx.grpc import call as call_module
from otelctx.grpc.interceptors import interceptors


@pytest.fixture(params=["sync", "aio"])
def server(request: pytest.FixtureRequest, serve: Any) -> Any:
    return serve(request.param)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread does: a minute, since a machine may be busy with other things."""
    for _ in range(12_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come about")


def outcome(span: Any) -> tuple[Any, Any, bool]:
    attributes = span.attributes
    error = span.status.status_code is StatusCode.ERROR
    return attributes.get("rpc.response.status_code"), attributes.get("error.type"), error


def hold(server: Any, after: int = 0) -> Event:
    """Handlers wait after so many messages, until the event is set or their call is over. ``server.held`` counts those
    that do: one that has not read its request yet takes a cancelled stream for one that has ended."""
    gate, messages = Event(), iter(range(after))
    server.held = 0

    async def later(context: Any) -> None:
        await until(gate.is_set)

    def wait(request: bytes, context: Any) -> Any:
        if next(messages, None) is not None:
            return None
        server.held += 1
        if server.style == "aio":
            return later(context)
        while not gate.wait(0.005) and context.is_active():
            pass
        return None

    server.act = wait
    return gate


@pytest.mark.parametrize("kind", ["unary_stream", "stream_stream"])
def test_a_caller_that_cancels_is_no_error_of_anybody(
    server: Any, connect: Any, kind: str, chat: Any, here: Any, there: Any, eventually: Any
) -> None:
    channel, gate = connect(server.target).channel, hold(server, after=1)
    call = getattr(channel, kind)(f"/test.Echo/{kind}")(b"a" if kind == "unary_stream" else iter([b"a", b"b"]))
    assert next(call)
    eventually(lambda: server.held == 1)
    call.cancel()
    with pytest.raises(grpc.RpcError):
        list(call)
    eventually(lambda: len(there.spans()) == 1)
    gate.set()
    assert outcome(here.span()) == outcome(there.span()) == ("CANCELLED", None, False)


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
async def test_an_aio_caller_that_cancels_is_no_error_of_anybody(
    server: Any, node: Any, kind: str, chat: Any, here: Any, there: Any
) -> None:
    gate = hold(server)
    chain = interceptors(node=node(), **here.options)
    async with grpc.aio.insecure_channel(server.target, interceptors=chain) as channel:
        call = getattr(channel, kind)(f"/test.Echo/{kind}")(b"a" if kind.startswith("unary") else iter([b"a"]))
        task = asyncio.ensure_future(call.read() if kind.endswith("stream") else _value(call))
        await until(lambda: server.held == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: len(there.spans()) == len(here.spans()) == 1)
        gate.set()
    assert outcome(here.span()) == ("CANCELLED", None, False)
    assert outcome(there.span()) == ("CANCELLED", None, False)


async def _value(call: Any) -> Any:
    return await call


def test_a_stream_that_is_dropped_unread_ends(
    server: Any, connect: Any, chat: Any, here: Any, there: Any, eventually: Any
) -> None:
    gate = hold(server)
    call = connect(server.target).channel.unary_stream("/test.Echo/unary_stream")(b"a")
    eventually(lambda: len(server.seen.calls) == 1)
    del call
    gc.collect()
    eventually(lambda: len(here.spans()) == 1 and len(there.spans()) == 1)
    gate.set()
    assert outcome(here.span()) == ("CANCELLED", None, False)


async def test_an_aio_stream_that_is_dropped_ends_with_its_channel(
    server: Any, node: Any, chat: Any, here: Any, there: Any
) -> None:
    """grpc.aio does not cancel a call that nobody holds any more, with interceptors or without."""
    gate = hold(server)
    chain = interceptors(node=node(), **here.options)
    async with grpc.aio.insecure_channel(server.target, interceptors=chain) as channel:
        channel.unary_stream("/test.Echo/unary_stream")(b"a")
        await until(lambda: len(server.seen.calls) == 1)
    await until(lambda: len(there.spans()) == len(here.spans()) == 1)
    gate.set()
    assert outcome(here.span()) == ("CANCELLED", None, False)


def test_what_a_cancelled_stream_has_used_comes_with_the_sessions_next_ack(
    server: Any, connect: Any, chat: Any, there: Any, eventually: Any
) -> None:
    client, gate = connect(server.target), hold(server, after=1)
    call = client.channel.unary_stream("/test.Echo/unary_stream")(b"a")
    assert next(call)
    call.cancel()
    eventually(lambda: len(there.spans()) == 1)
    gate.set()
    assert chat.up("grpc.spent") is None
    client.call("unary_unary", b"a")
    assert chat.up("grpc.spent") in (2, 3), "one message was sent, and perhaps another one begun"


def test_a_stream_of_a_single_threaded_channel_is_the_same(server: Any, connect: Any, chat: Any, here: Any) -> None:
    option = (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)
    client = connect(server.target, options=[option])
    assert len(client.call("unary_stream", b"a")) == 3
    assert chat.up("grpc.spent") == 3
    assert outcome(here.span()) == ("OK", None, False)


@pytest.mark.parametrize("there_style", ["sync", "aio"])
@pytest.mark.parametrize("style", ["sync", "aio"])
@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
def test_a_deadline_is_an_error_on_both_sides(
    serve: Any, connect: Any, there_style: str, style: str, kind: str, chat: Any, here: Any, there: Any, eventually: Any
) -> None:
    """The shortest of these that leaves this machine the time to get to the handler."""
    for seconds in (0.1, 1.0, 10.0, 60.0):
        server = serve(there_style)
        gate = hold(server)
        with pytest.raises(grpc.RpcError) as caught:
            connect(server.target, style).call(kind, b"a", timeout=seconds)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if server.held:
            break
        gate.set()
        server.stop()
        here.exporter.clear()
        there.exporter.clear()
    eventually(lambda: len(there.spans()) == 1)
    gate.set()
    expected = ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", True)
    assert outcome(here.span()) == outcome(there.span()) == expected
    assert not [name for name in server.seen.metadata[0] if "timeout" in name], "the deadline is gRPC's own"


@pytest.mark.parametrize("style", ["sync", "aio"])
def test_a_server_that_ends_a_stream_is_heard_to_the_last_message(
    server: Any, connect: Any, style: str, chat: Any, here: Any
) -> None:
    sent: list[bytes] = []

    def act(request: bytes, context: Any) -> Any:
        sent.append(request)
        return context.abort(grpc.StatusCode.CANCELLED, "enough") if len(sent) == 3 else None

    server.act = act
    with pytest.raises(grpc.RpcError):
        connect(server.target, style).call("unary_stream", b"a")
    assert outcome(here.span()) == ("CANCELLED", "CANCELLED", True), "the caller did not want that"
    assert chat.up("grpc.spent") == 3


def test_initial_metadata_are_not_waited_for(server: Any, connect: Any, chat: Any) -> None:
    """``initial_metadata()`` of a stream blocks until the first message: whoever asked for an ack there would hang."""
    gate = hold(server)
    call = connect(server.target).channel.unary_stream("/test.Echo/unary_stream")(b"a")  # returns at once
    gate.set()
    assert len(list(call)) == 3


def test_the_other_instrumentation_and_ours_make_one_span_on_each_side(
    serve: Any, connect: Any, node: Any, chat: Any, here: Any, there: Any
) -> None:
    other = pytest.importorskip("opentelemetry.instrumentation.grpc")
    for style in ("sync", "aio"):
        theirs: Any = (
            other.server_interceptor(tracer_provider=there.tracers)
            if style == "sync"
            else other.aio_server_interceptor(tracer_provider=there.tracers)
        )
        server = serve(style, chain=lambda ours, theirs=theirs: [theirs, *ours])
        inner = other.client_interceptor(tracer_provider=here.tracers)
        from opentelemetry.instrumentation.grpc.grpcext import intercept_channel

        if style == "sync":
            from otelctx.grpc.client import instrument

            with grpc.insecure_channel(server.target) as bare:
                channel = instrument(intercept_channel(bare, inner), node=node(), **here.options)
                assert channel.unary_unary("/test.Echo/unary_unary")(b"a") == b"a"
                assert len(list(channel.unary_stream("/test.Echo/unary_stream")(b"a"))) == 3
        else:
            outer = other.aio_client_interceptors(tracer_provider=here.tracers)
            client = connect(server.target, "aio", outer=outer)
            assert client.call("unary_unary", b"a") == b"a"
            assert len(client.call("unary_stream", b"a")) == 3
        assert server.seen.tiers() == ["gold", "gold"]
        ours, served = here.spans(SpanKind.CLIENT), there.spans(SpanKind.SERVER)
        assert len(ours) == len(served) == 2
        assert [span.context.trace_id for span in ours] == [span.context.trace_id for span in served]
        here.exporter.clear()
        there.exporter.clear()


def test_what_is_suppressed_is_left_alone(server: Any, connect: Any, chat: Any, here: Any) -> None:
    from opentelemetry import context as otel_context

    client = connect(server.target)
    token = otel_context.attach(otel_context.set_value(call_module._SUPPRESS, True))
    try:
        client.call("unary_unary", b"a")
        client.call("unary_stream", b"a")
    finally:
        otel_context.detach(token)
    assert not here.spans()
    assert server.seen.frames() == []


def test_requests_of_a_stream_are_made_within_the_span(server: Any, connect: Any, chat: Any, here: Any) -> None:
    seen: list[int] = []

    def requests() -> Any:
        for _ in range(2):
            seen.append(trace.get_current_span().get_span_context().span_id)
            yield b"a"

    channel = connect(server.target).channel
    assert channel.stream_unary("/test.Echo/stream_unary")(requests()) == b"aa"
    assert seen == [here.span().context.span_id] * 2


def test_spans_inside_a_handler_are_children_of_the_servers(server: Any, connect: Any, chat: Any, there: Any) -> None:
    def act(request: bytes, context: Any) -> None:
        with there.tracers.get_tracer("app").start_as_current_span("work"):
            pass

    server.act = act
    connect(server.target).call("unary_stream", b"a")
    parent = there.span(SpanKind.SERVER).context.span_id
    work = there.spans(SpanKind.INTERNAL)
    assert [span.parent.span_id for span in work] == [parent] * 3


def test_importing_the_facade_does_not_import_grpc() -> None:
    import subprocess

    code = "import sys, otelctx; otelctx.instrument; print('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
