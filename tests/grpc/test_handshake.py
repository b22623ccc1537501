"""What is refused is sent once more, and nothing else is; servers and proxies that know nothing of it lose nothing."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from opentelemetry.trace import SpanKind

from otelctx.context.current import ContextKey, session
from otelctx.grpc.client import instrument

TIER = ContextKey("grpc.tier", str)


@pytest.fixture(params=["sync", "aio"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def restarted(serve: Any, server: Any, **options: Any) -> Any:
    """Another process on the same port: with no base, and another boot id."""
    server.stop()
    return serve(server.style, port=server.port, seen=server.seen, **options)


def test_a_server_that_has_lost_the_base_refuses_and_gets_it_once_more(
    serve: Any, connect: Any, style: str, chat: Any, here: Any, there: Any
) -> None:
    server = serve(style)
    client = connect(server.target, style)
    for _ in range(4):
        client.call("unary_unary", b"a")
    server = restarted(serve, server)
    assert client.call("unary_unary", b"b", wait_for_ready=True) == b"b"
    assert server.seen.tiers() == ["gold"] * 5, "a refused call does not reach its handler"
    full, *_, ref, refused, again = server.seen.frames()
    assert ref == refused < full == again
    assert chat.up("grpc.spent") == 5
    first, second = here.spans()[-2:]
    assert first.attributes["otelctx.resync"] is True
    assert first.attributes["rpc.response.status_code"] == "FAILED_PRECONDITION"
    assert "error.type" not in first.attributes
    assert first.context.trace_id == second.context.trace_id or first.parent is None
    assert second.attributes["otelctx.frame.kind"] == "full"
    refusal = there.spans(SpanKind.SERVER)[-2]
    assert refusal.attributes["otelctx.resync"] is True
    assert "error.type" not in refusal.attributes


def test_the_second_refusal_is_handed_on(serve: Any, connect: Any, style: str, chat: Any, here: Any) -> None:
    """An application that itself says FAILED_PRECONDITION is heard, and its call is not made twice."""
    server = serve(style)
    client = connect(server.target, style)
    for _ in range(4):
        client.call("unary_unary", b"a")
    server.act = lambda request, context: context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not in this state")
    with pytest.raises(grpc.RpcError) as caught:
        client.call("unary_unary", b"b")
    assert caught.value.details() == "not in this state"
    assert len(server.seen.calls) == 5
    assert here.spans()[-1].attributes["error.type"] == "FAILED_PRECONDITION"


def test_a_proceeding_server_runs_the_handler_and_says_that_it_is_incomplete(
    serve: Any, connect: Any, style: str, chat: Any
) -> None:
    server = serve(style)
    client = connect(server.target, style)
    for _ in range(4):
        client.call("unary_unary", b"a")
    server = restarted(serve, server, settings={"on_unknown_base": "proceed"})
    client.call("unary_unary", b"b", wait_for_ready=True)
    assert server.seen.calls[-1]["incomplete"] is True
    assert server.seen.tiers()[-1] is None
    client.call("unary_unary", b"c")
    assert server.seen.tiers()[-1] == "gold"


def test_a_server_that_knows_nothing_gets_context_as_baggage_and_is_never_sent_less(
    serve: Any, connect: Any, style: str, chat: Any
) -> None:
    plain = serve(style, chain=lambda ours: [])
    client = connect(plain.target, style)
    for kind in ("unary_unary", "stream_stream") * 4:
        client.call(kind, b"a")
    assert len(set(plain.seen.frames())) == 1, "always FULL"
    assert all("traceparent" in metadata for metadata in plain.seen.metadata)


class Strip(grpc.ServerInterceptor):
    """What some proxies do: no trailing metadata get through."""

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)

        class Deaf:
            def __init__(self, inner: Any) -> None:
                self._inner = inner

            def __getattr__(self, name: str) -> Any:
                return getattr(self._inner, name)

            def set_trailing_metadata(self, metadata: Any) -> None:
                pass

        def behave(request: Any, context: Any) -> Any:
            return handler.unary_unary(request, Deaf(context))

        return grpc.unary_unary_rpc_method_handler(behave)


def test_without_trailing_metadata_the_initial_ones_carry_the_ack(serve: Any, connect: Any, chat: Any) -> None:
    server = serve("sync", chain=lambda ours: [Strip(), *ours])
    for style in ("sync", "aio"):
        client = connect(server.target, style)
        before, spent = len(server.seen.frames()), chat.up("grpc.spent") or 0
        for _ in range(5):
            client.call("unary_unary", b"a")
        sizes = server.seen.frames()[before:]
        assert sizes[-1] < sizes[0], "it acks, so it gets a REF"
        assert chat.up("grpc.spent") == spent + 5
    server = restarted(serve, server, chain=lambda ours: [Strip(), *ours])
    assert client.call("unary_unary", b"b", wait_for_ready=True) == b"b", "nor is a refusal taken for the application's"


def test_a_future_is_done_when_what_came_back_is_in_the_scope(serve: Any, connect: Any, chat: Any, here: Any) -> None:
    server = serve("sync")
    client = connect(server.target)
    stub = client.channel.unary_unary("/test.Echo/unary_unary")
    heard: list[Any] = []
    for round_ in range(1, 5):
        future = stub.future(b"a")
        future.add_done_callback(lambda done: heard.append((done.code(), chat.up("grpc.spent"))))
        assert future.result(60) == b"a"
        assert chat.up("grpc.spent") == round_
    assert isinstance(future, grpc.Future)
    assert isinstance(future, grpc.Call)
    server = restarted(serve, server)
    future = stub.future(b"b", wait_for_ready=True)
    assert future.result(60) == b"b"
    assert future.exception(5) is None
    assert (future.code(), future.done(), future.running()) == (grpc.StatusCode.OK, True, False)
    assert dict(future.initial_metadata())["otelctx-ack-bin"] == dict(future.trailing_metadata())["otelctx-ack-bin"]
    assert server.seen.tiers() == ["gold"] * 5
    assert heard == [(grpc.StatusCode.OK, n) for n in range(1, 5)]
    assert client.channel.stream_unary("/test.Echo/stream_unary").future(iter([b"a", b"b"])).result(60) == b"ab"
    late: list[Any] = []
    future.add_done_callback(late.append)
    assert late == [future]


def test_a_future_can_be_cancelled_and_waited_for_in_vain(serve: Any, connect: Any, chat: Any, here: Any) -> None:
    from threading import Event

    server, gate = serve("sync"), Event()
    server.act = lambda request, context: gate.wait(60)
    future = connect(server.target).channel.unary_unary("/test.Echo/unary_unary").future(b"a")
    with pytest.raises(grpc.FutureTimeoutError):
        future.result(0.05)
    assert future.cancel()
    with pytest.raises(grpc.FutureCancelledError):
        future.result(60)
    assert future.cancelled()
    gate.set()
    span = here.span()
    assert span.attributes["rpc.response.status_code"] == "CANCELLED"
    assert "error.type" not in span.attributes


@pytest.mark.parametrize("early", [False, True], ids=["while it is waited for", "before the future is there"])
def test_a_repetition_that_cannot_be_sent_leaves_the_refusal_as_the_answer(
    serve: Any, connect: Any, chat: Any, here: Any, early: bool
) -> None:
    """Whenever the refusal comes."""
    server = serve("sync")
    client = connect(server.target)
    for _ in range(4):
        client.call("unary_unary", b"a")
    server = restarted(serve, server)

    class Closing:
        """The channel as it is when somebody closes it in between."""

        sent = 0

        def unary_unary(self, *arguments: Any) -> Any:
            self.sent += 1
            self.first = client.bare.unary_unary(*arguments)
            return self

        def future(self, request: bytes, **options: Any) -> Any:
            if self.sent == 1:
                refused = self.first.future(request, **options)
                if early:
                    refused.exception(60)
                return refused
            raise ValueError("Cannot invoke RPC on closed channel!")

    grpc.Channel.register(Closing)
    channel: Any = Closing()
    again = instrument(channel, target=server.target, node=client.node, **here.options)
    future = again.unary_unary("/test.Echo/unary_unary").future(b"b", wait_for_ready=True)
    with pytest.raises(grpc.RpcError) as caught:
        future.result(60)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert server.seen.tiers() == ["gold"] * 4


def test_metadata_that_are_too_much_for_a_server_go_without_ours_once(
    connect: Any, chat: Any, serve: Any, style: str, here: Any
) -> None:
    small = serve("sync", options=[("grpc.absolute_max_metadata_size", 1200)])
    client = connect(small.target, style)
    with session("chat-big"), TIER.bound("g" * 900):
        assert client.call("unary_unary", b"a") == b"a"
        assert client.call("unary_unary", b"a") == b"a"
    first, second, third = here.spans()
    assert first.attributes["rpc.response.status_code"] == "RESOURCE_EXHAUSTED"
    assert first.attributes["otelctx.resync"] is True
    assert "otelctx.frame.kind" not in second.attributes
    assert "otelctx.frame.kind" not in third.attributes, "for ten minutes"
    assert len(small.seen.calls) == 2


def test_over_the_budget_of_metadata_there_is_no_frame(
    serve: Any, connect: Any, style: str, chat: Any, here: Any
) -> None:
    server = serve(style)
    mine = (("x-much", "m" * 7000),)
    with TIER.bound("g" * 900):
        connect(server.target, style).call("unary_unary", b"a", metadata=mine)
    assert server.seen.frames() == []
    (event,) = here.span().events
    assert event.name == "otelctx.context.lost"
    assert event.attributes["otelctx.reason"] == "no_room"


def test_a_call_that_grpc_itself_retries_is_repaired_by_the_refusal(connect: Any, chat: Any, serve: Any) -> None:
    """A retry by service config repeats the metadata as they were, a REF too."""
    policy = {
        "maxAttempts": 4,
        "initialBackoff": "0.2s",
        "maxBackoff": "0.2s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    config = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]})
    server = serve("sync")
    client = connect(server.target, options=[("grpc.service_config", config)])
    for _ in range(4):
        client.call("unary_unary", b"a")
    failed: list[bytes] = []

    def once(request: bytes, context: Any) -> None:
        if not failed:
            failed.append(request)
            context.abort(grpc.StatusCode.UNAVAILABLE, "try again")

    server.act = once
    assert client.call("unary_unary", b"b") == b"b"
    assert failed == [b"b"]
    assert server.seen.metadata[-1]["grpc-previous-rpc-attempts"] == "1"
    assert server.seen.tiers() == ["gold"] * 6


def test_a_balanced_channel_sends_full(serve: Any, connect: Any, style: str, chat: Any) -> None:
    server = serve(style)
    client = connect(server.target, style, balanced=True)
    for _ in range(5):
        client.call("unary_unary", b"a")
    assert len(set(server.seen.frames())) == 1


def test_two_servers_behind_one_round_robin_channel_are_noticed(serve: Any, connect: Any, chat: Any) -> None:
    one, other = serve("sync"), serve("sync")
    config = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    client = connect(f"ipv4:{one.target},{other.target}", options=[("grpc.service_config", config)])
    for _ in range(16):
        client.call("unary_unary", b"a")
    assert one.seen.tiers() + other.seen.tiers() == ["gold"] * 16
    assert min(len(one.seen.calls), len(other.seen.calls)) > 2


def test_a_channel_is_wrapped_once(serve: Any, node: Any) -> None:
    server = serve("sync")
    with grpc.insecure_channel(server.target) as bare:
        channel = instrument(bare, node=node())
        assert channel is not bare
        assert instrument(channel) is channel
        assert channel.unary_unary("/test.Echo/unary_unary")(b"a") == b"a"


def test_a_method_that_is_not_there_is_no_concern_of_the_interceptor(serve: Any, connect: Any, style: str) -> None:
    server = serve(style)
    with pytest.raises(grpc.RpcError) as caught:
        connect(server.target, style).call("unary_unary", b"a", method="missing")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_no_server_at_all_is_an_error_of_the_call(connect: Any, style: str, chat: Any, here: Any) -> None:
    with pytest.raises(grpc.RpcError):
        connect("127.0.0.1:1", style).call("unary_unary", b"a")
    assert here.span().attributes["error.type"] == "UNAVAILABLE"


def test_calls_that_share_a_thread_share_nothing_else(connect: Any, serve: Any) -> None:
    server = serve("sync", workers=1)
    client = connect(server.target)
    for kind in ("unary_unary", "unary_stream", "stream_stream"):
        with session("chat-1"), TIER.bound("gold"):
            client.call(kind, b"a")
        client.call(kind, b"a")
    assert server.seen.tiers() == ["gold", None] * 3
    assert len({call["thread"] for call in server.seen.calls}) == 1
