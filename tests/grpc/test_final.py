"""Trailing metadata come when the handler is done: the ack in them is final, and says so."""

from __future__ import annotations

from typing import Any

import pytest

from otelctx.context.current import UpKey
from otelctx.delta.codec import decode_ack, split_mac

ACK = "otelctx-ack-bin"
SPENT = UpKey("grpc.spent", int, rule="sum")


def read(metadata: Any) -> Any:
    (found,) = [value for name, value in metadata if name == ACK]
    return decode_ack(split_mac(found)[0])


@pytest.mark.parametrize("style", ["sync", "aio", "sync in aio"])
def test_the_ack_of_each_kind_of_call_is_final_and_carries_what_was_recorded(
    serve: Any, connect: Any, chat: Any, style: str
) -> None:
    server = serve("sync" if style == "sync" else "aio", sync_in_aio=style == "sync in aio")
    channel = connect(server.target).channel
    for round_ in range(5):  # with the fourth the unary call sends a REF
        _, call = channel.unary_unary("/test.Echo/unary_unary").with_call(b"a")
        trailing = read(call.trailing_metadata())
        assert trailing.final
        assert {item.name: item.value for item in trailing.ups} == {"grpc.spent": 1}, round_
        assert read(call.initial_metadata()) == trailing, "a unary call's goes ahead as well, and is as final"
    for kind, requests in (("unary_stream", b"a"), ("stream_stream", iter([b"a", b"b"]))):
        answers = getattr(channel, kind)(f"/test.Echo/{kind}")(requests)
        assert list(answers)
        ack = read(answers.trailing_metadata())
        assert (ack.final, len(ack.ups), ack.event != 0) == (True, 1, True)
        assert not [name for name, _ in answers.initial_metadata() if name == ACK]


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
@pytest.mark.parametrize("style", ["sync", "aio"])
def test_the_ack_of_a_call_of_two_hours_is_signed_as_of_its_end(
    serve: Any, connect: Any, chat: Any, monkeypatch: pytest.MonkeyPatch, style: str, kind: str
) -> None:
    """The signature of the hour in which the call began would be too old by then."""
    from otelctx.grpc import call, handling

    late = call.time() + 7200.0

    def hours_pass(request: Any, context: Any) -> None:
        for module in (call, handling):
            monkeypatch.setattr(module, "time", lambda: late)

    server = serve(style)
    server.act = hours_pass
    connect(server.target, style).call(kind, b"a")
    assert SPENT.get() > 0


def test_a_call_that_its_handler_aborts_has_a_final_ack_too(serve: Any, connect: Any, chat: Any) -> None:
    import grpc

    server = serve("sync")
    server.act = lambda request, context: context.abort(grpc.StatusCode.NOT_FOUND, "no")
    with pytest.raises(grpc.RpcError) as caught:
        connect(server.target).channel.unary_unary("/test.Echo/unary_unary")(b"a")
    assert read(caught.value.trailing_metadata()).final
