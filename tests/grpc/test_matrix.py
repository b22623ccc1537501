"""Every kind of call, between both kinds of channels and of servers: context down, usage up, one span on each side."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from opentelemetry.trace import SpanKind, StatusCode

from otelctx.context.current import ContextKey, session

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
TIER = ContextKey("grpc.tier", str)
STYLES = [(client, server) for client in ("sync", "aio") for server in ("sync", "aio", "sync in aio")]


@pytest.fixture(params=STYLES, ids=lambda pair: f"{pair[0]}-{pair[1].replace(' ', '-')}")
def pair(request: pytest.FixtureRequest, serve: Any, connect: Any) -> Any:
    client, server = request.param
    served = serve("sync" if server == "sync" else "aio", sync_in_aio=server == "sync in aio")
    return connect(served.target, client), served


@pytest.mark.parametrize("kind", KINDS)
def test_context_goes_down_and_usage_comes_up(pair: Any, kind: str, chat: Any, here: Any, there: Any) -> None:
    client, server = pair
    messages = {"unary_unary": 1, "unary_stream": 3, "stream_unary": 1, "stream_stream": 2}[kind]
    for round_ in range(1, 6):
        client.call(kind, b"a", b"b")
        assert chat.up("grpc.spent") == round_ * messages, "what came back is there when the call returns"
    assert server.seen.tiers() == ["gold"] * 5
    assert {call["source"] for call in server.seen.calls} == {"frame"}
    sizes = server.seen.frames()
    assert len(sizes) == 5
    if kind == "unary_unary":
        assert sizes[4] < sizes[0], "the fourth call of a link that acks is a REF"
    else:
        assert len(set(sizes)) == 1, "streams carry FULL"


@pytest.mark.parametrize("kind", KINDS)
def test_each_side_has_one_span_and_one_duration(pair: Any, kind: str, chat: Any, here: Any, there: Any) -> None:
    client, server = pair
    client.call(kind, b"a")
    ours, theirs = here.span(), there.span()
    assert (ours.kind, theirs.kind) == (SpanKind.CLIENT, SpanKind.SERVER)
    assert ours.name == theirs.name == f"test.Echo/{kind}"
    assert theirs.parent is not None
    assert theirs.parent.span_id == ours.context.span_id
    assert server.seen.calls[0]["trace"] == ours.context.trace_id
    for span in (ours, theirs):
        assert span.attributes["rpc.system.name"] == "grpc"
        assert span.attributes["rpc.method"] == f"test.Echo/{kind}"
        assert span.attributes["rpc.response.status_code"] == "OK"
        assert span.attributes["session.id"] == "chat-42"
        assert span.attributes["otelctx.frame.kind"] == "full"
        assert span.status.status_code is StatusCode.UNSET
    assert (ours.attributes["server.address"], ours.attributes["server.port"]) == ("127.0.0.1", server.port)
    assert theirs.attributes["client.address"] == "127.0.0.1"
    point = {"rpc.system.name": "grpc", "rpc.method": f"test.Echo/{kind}", "rpc.response.status_code": "OK"}
    assert there.durations("rpc.server.call.duration") == [point]
    assert here.durations("rpc.client.call.duration") == [
        {**point, "server.address": "127.0.0.1", "server.port": server.port}
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_handler_and_its_callers_never_see_frames(pair: Any, kind: str, chat: Any) -> None:
    client, server = pair
    client.call(kind, b"a", metadata=(("x-mine", "1"), ("otelctx-bin", b"left over"), ("otelctx", "text")))
    (arrived,) = server.seen.metadata
    assert arrived["x-mine"] == "1"
    assert "otelctx" not in arrived
    (call,) = server.seen.calls
    assert call["metadata"]["x-mine"] == "1"
    assert not [name for name in call["metadata"] if name.startswith("otelctx")]


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_call_starts_with_nothing_of_the_last(pair: Any, kind: str) -> None:
    client, server = pair
    with session("chat-1"), TIER.bound("gold"):
        client.call(kind, b"a")
    client.call(kind, b"a")
    assert server.seen.tiers() == ["gold", None]
    assert [call["source"] for call in server.seen.calls] == ["frame", "none"]
    assert "otelctx-bin" not in server.seen.metadata[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_fails_is_an_error_of_the_server_and_still_acks(
    pair: Any, kind: str, chat: Any, here: Any, there: Any, caplog: Any
) -> None:
    client, server = pair

    def fail(request: bytes, context: Any) -> None:
        raise LookupError("not here")

    server.act = fail
    with pytest.raises(grpc.RpcError) as caught:
        client.call(kind, b"a")
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    ours, theirs = here.span(), there.span()
    for span in (ours, theirs):
        assert span.attributes["rpc.response.status_code"] == span.attributes["error.type"] == "UNKNOWN"
        assert span.status.status_code is StatusCode.ERROR
    (event,) = theirs.events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "LookupError"
    assert chat.up("grpc.spent") == 1, "what was used before is known"
    assert there.durations("rpc.server.call.duration")[0]["error.type"] == "UNKNOWN"


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_is_the_applications_answer_and_keeps_its_metadata(
    pair: Any, kind: str, chat: Any, here: Any, there: Any, eventually: Any
) -> None:
    client, server = pair

    def refuse(request: bytes, context: Any) -> Any:
        context.set_trailing_metadata((("x-why", "because"),))
        return context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")

    server.act = refuse
    with pytest.raises(grpc.RpcError) as caught:
        client.call(kind, b"a")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    trailing = dict(caught.value.trailing_metadata())
    assert trailing["x-why"] == "because"
    assert isinstance(trailing["otelctx-ack-bin"], bytes)
    eventually(lambda: len(there.spans()) == 1)  # an aio server answers before the handler has been left
    ours, theirs = here.span(), there.span()
    assert ours.attributes["error.type"] == "NOT_FOUND"
    assert "error.type" not in theirs.attributes, "the client is wrong, says the server"
    assert not theirs.events
    assert chat.up("grpc.spent") == 1
