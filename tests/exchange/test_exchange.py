"""Both sides against each other, without a network."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.context.current import ContextKey, UpKey, session
from otelctx.context.scope import Scope
from otelctx.delta.codec import decode_ack, from_header, split_mac
from otelctx.delta.messages import Ack, AckKind
from otelctx.exchange.client import Verdict
from otelctx.exchange.node import Node

TIER = ContextKey("exchange.tier", str, visibility="public")
PROMPT = ContextKey("exchange.prompt", str)
LOCAL = ContextKey("exchange.local", str, flow="local")
SPENT = UpKey("exchange.spent", int, rule="sum")
UNIX = 1_800_000_000.0
OTHER_SECRET = "1:" + base64.b64encode(b"x" * 32).decode()
PRIVATE = [(b"cache-control", b"max-age=0, Private")]


def ack_of(value: bytes | str) -> Ack:
    return decode_ack(split_mac(from_header(value))[0])


@pytest.fixture
def aware(wire: Any, chat: Scope) -> Any:
    """A link that has seen three acks and a state that the callee holds."""
    PROMPT.set("x" * 200)
    TIER.set("gold")
    for _ in range(3):
        wire.call()
    wire.kinds.clear()
    wire.outcomes.clear()
    wire.runs = 0
    return wire


# which frame goes


def test_three_full_then_a_ref_then_a_delta_for_what_changed(wire: Any, chat: Scope) -> None:
    PROMPT.set("x" * 200)
    TIER.set("gold")
    for _ in range(4):
        wire.call()
    TIER.set("silver")
    inbound = wire.call()
    assert wire.kinds == ["full", "full", "full", "ref", "delta"]
    assert set(wire.outcomes) == {"accepted"}
    assert dict(inbound.scope.state) == {
        "session.id": "chat-42",
        "exchange.prompt": "x" * 200,
        "exchange.tier": "silver",
    }
    assert inbound.scope.source == "frame"


def test_concurrent_first_requests_all_send_full(wire: Any, chat: Scope) -> None:
    assert [wire.begin().kind for _ in range(5)] == ["full"] * 5


@pytest.mark.parametrize(
    "request_",
    [{"attempt": 1}, {"body": None}, {"body": 65537}, {"method": "CONNECT"}],
    ids=["second attempt", "stream", "large body", "tunnel"],
)
def test_what_could_not_be_repeated_is_sent_in_full(aware: Any, request_: dict[str, Any]) -> None:
    assert aware.begin().kind == "ref"
    assert aware.begin(**request_).kind == "full"


def test_a_get_is_full_until_its_path_has_acked_one(aware: Any) -> None:
    aware.response_headers = PRIVATE
    aware.call(method="GET", path="/models")
    aware.call(method="GET", path="/models")
    aware.call(method="GET", path="/other")
    assert aware.kinds == ["full", "ref", "full"]


def test_a_session_starts_with_a_full_on_an_aware_link(aware: Any) -> None:
    with session("chat-43"):
        assert aware.begin().kind == "full"


def test_without_any_context_there_is_no_frame(wire: Any) -> None:
    exchange = wire.begin()
    assert (exchange.headers, exchange.members, exchange.kind) == ([], {}, None)
    assert exchange.close(200, [], 1.0, 1.0) is Verdict.DONE


def test_bound_values_go_out_and_local_ones_stay(wire: Any, chat: Scope) -> None:
    LOCAL.set("here")
    with PROMPT.bound("there"):
        inbound = wire.call()
    assert dict(inbound.scope.state) == {"session.id": "chat-42", "exchange.prompt": "there"}


def test_told_so_a_process_sends_w3c_headers_alone(wire: Any, chat: Scope, node: Callable[..., Node]) -> None:
    TIER.set("gold")
    wire.caller = node(frames="never")
    for _ in range(4):
        exchange = wire.begin()
        assert (exchange.headers, exchange.kind, exchange.members) == ([], None, {"exchange.tier": "gold"})
        assert exchange.close(200, [], 1.0, 1.0) is Verdict.DONE


# who gets it


def test_a_host_outside_gets_nothing(wire: Any, chat: Scope) -> None:
    TIER.set("gold")
    exchange = wire.begin(host="api.example.com")
    assert (exchange.allowed, exchange.headers, exchange.members) == (False, [], {})
    assert wire.begin(host="worker.internal").headers


def test_public_keys_go_into_baggage_until_the_origin_has_acked(wire: Any, chat: Scope) -> None:
    TIER.set("a b+c,ü")
    PROMPT.set("secret")
    seen = []
    for _ in range(4):
        wire.call()
        seen.append(wire.client.members)
    assert seen == [{"exchange.tier": "a%20b%2Bc%2C%C3%BC"}] * 3 + [{}]


def test_overlays_that_do_not_fit_beside_the_scope_are_told_and_nothing_is_trimmed(wire: Any, chat: Scope) -> None:
    keys = [ContextKey(f"exchange.large.{n}", str) for n in range(3)]
    with keys[0].bound("x" * 1000), keys[1].bound("x" * 1000):
        chat.set(keys[2].spec, "x" * 1000)
        exchange = wire.begin()
    assert (exchange.headers, exchange.lost) == ([], "too_large")
    assert wire.begin().lost is None


# what is believed


def test_an_unsigned_frame_of_a_stranger_is_ignored(wire: Any, chat: Scope, node: Callable[..., Node]) -> None:
    wire.caller = node(keys="")
    inbound = wire.call()
    assert (inbound.outcome, inbound.reason, dict(inbound.scope.state)) == ("ignored", "untrusted", {})
    assert (inbound.trusted, inbound.kind, inbound.event) == (False, None, "otelctx.context.rejected")
    assert inbound.ack("POST", [], wire.unix) is None
    assert inbound.final_ack(wire.unix) is None


def test_an_unsigned_frame_of_a_trusted_address_is_believed(wire: Any, chat: Scope, node: Callable[..., Node]) -> None:
    wire.caller, wire.callee = node(keys=""), node(keys="", trusted_clients=("127.0.0.1",))
    SPENT.record(0)
    inbound = wire.call(lambda scope: scope.record(SPENT.spec, 7))
    assert (inbound.outcome, inbound.trusted, inbound.client) == ("accepted", True, "127.0.0.1")
    assert SPENT.get() == 7


def test_a_forged_frame_is_ignored_whatever_its_address(wire: Any, chat: Scope, node: Callable[..., Node]) -> None:
    wire.caller, wire.callee = node(keys=OTHER_SECRET), node(trusted_clients=("127.0.0.1",))
    inbound = wire.call()
    assert (inbound.outcome, inbound.reason) == ("ignored", "mac")


@pytest.mark.parametrize("lines", [[b"garbage"], [b":AAAA:"], [b"::", b"::"], [b":" + b"A" * 5000 + b":"]])
def test_rubbish_leaves_the_application_unharmed_and_unanswered(wire: Any, lines: list[bytes]) -> None:
    inbound = wire.open(lines)
    assert (inbound.outcome, inbound.scope.source, inbound.scope.incomplete) == ("ignored", "none", False)
    assert inbound.ack("POST", [], wire.unix) is None
    assert inbound.reason


def test_a_line_of_a_trusted_address_is_not_believed_from_another(
    wire: Any, chat: Scope, node: Callable[..., Node]
) -> None:
    """Whoever has read it on the wire can send it again."""
    wire.caller, wire.callee = node(keys=""), node(keys="", trusted_clients=("127.0.0.1",))
    for _ in range(5):
        wire.call()
    lines = [value for _, value in wire.begin().headers]
    assert (wire.kinds[-1], wire.open(lines).outcome) == ("ref", "accepted")
    assert wire.open(lines, client="127.0.0.2").reason == "untrusted"


def test_the_client_behind_a_trusted_proxy_decides(node: Callable[..., Node], wire: Any) -> None:
    wire.callee = node(keys="", trusted_clients=("10.0.0.0/8",), trusted_proxies=("127.0.0.1",))
    inside = wire.open([], forwarded="203.0.113.9, 10.1.2.3")
    outside = wire.open([], forwarded="10.1.2.3, 203.0.113.9")
    assert (inside.client, inside.trusted) == ("10.1.2.3", True)
    assert (outside.client, outside.trusted) == ("203.0.113.9", False)


# baggage instead of a frame


def test_baggage_of_a_trusted_client_is_read_to_its_types(node: Callable[..., Node], wire: Any) -> None:
    wire.callee = node(trusted_clients=("127.0.0.1",))
    inbound = wire.open([], baggage="other=1;p=2, exchange.tier=a%20b+c,exchange.prompt=no")
    assert dict(inbound.scope.state) == {"exchange.tier": "a b+c"}
    assert inbound.scope.source == "baggage"
    assert inbound.baggage == "other=1;p=2,exchange.prompt=no"
    assert wire.open([], baggage="exchange.tier=gold,otelctx.incomplete=true").scope.incomplete is True


def test_a_strangers_baggage_is_not_read_and_ours_does_not_go_on(wire: Any) -> None:
    """Else the next hop, which trusts this one, would believe it."""
    inbound = wire.open([], baggage="exchange.tier=gold,theirs=1")
    assert (dict(inbound.scope.state), inbound.scope.source, inbound.baggage) == ({}, "none", "theirs=1")
    assert wire.open([], baggage="exchange.tier=gold").baggage is None


def test_with_a_frame_our_members_of_the_baggage_are_ignored(wire: Any, chat: Scope) -> None:
    TIER.set("gold")
    lines = [value for _, value in wire.begin().headers]
    inbound = wire.open(lines, baggage="exchange.tier=lead,theirs=1")
    assert (inbound.scope.state["exchange.tier"], inbound.baggage) == ("gold", "theirs=1")


# bases that are gone


def test_a_restarted_callee_refuses_before_the_app_and_gets_it_in_full(aware: Any, node: Callable[..., Node]) -> None:
    aware.callee = node()
    inbound = aware.call()
    assert (aware.kinds, aware.outcomes, aware.runs) == (["ref", "full"], ["refuse", "accepted"], 1)
    assert inbound.scope.state["exchange.tier"] == "gold"
    aware.call()
    assert aware.kinds[-1] == "ref"


def test_a_refusal_is_a_412_that_nobody_caches(aware: Any, node: Callable[..., Node]) -> None:
    aware.callee = node()
    exchange = aware.begin()
    inbound = aware.open([value for _, value in exchange.headers])
    status, headers, body = inbound.refusal(aware.unix)
    head = dict(headers)
    ack = ack_of(head[b"otelctx-ack"])
    assert (status, head[b"cache-control"], inbound.event) == (412, b"no-store", "otelctx.context.resync")
    assert (ack.kind, ack.reason.name) == (AckKind.NACK, "UNKNOWN_BASE")
    assert b"full" in body
    assert inbound.ack("POST", [], aware.unix) is None


def test_only_a_refused_exchange_has_a_refusal(wire: Any) -> None:
    with pytest.raises(ValueError, match="none"):
        wire.open([]).refusal(wire.unix)


def test_the_resend_comes_once(aware: Any, node: Callable[..., Node]) -> None:
    exchange = aware.begin()
    aware.callee = node()
    nack = dict(aware.open([value for _, value in exchange.headers]).refusal(aware.unix)[1])[b"otelctx-ack"]
    assert exchange.close(412, [nack], aware.now, UNIX + aware.now) is Verdict.RESEND
    assert exchange.kind == "full"
    assert exchange.close(412, [nack], aware.now, UNIX + aware.now) is Verdict.DONE


def test_no_second_resend_whatever_the_reason(aware: Any, node: Callable[..., Node]) -> None:
    exchange = aware.begin()
    aware.callee = node()
    nack = dict(aware.open([value for _, value in exchange.headers]).refusal(aware.unix)[1])[b"otelctx-ack"]
    assert exchange.close(412, [nack], aware.now, UNIX + aware.now) is Verdict.RESEND
    assert exchange.close(431, [], aware.now, UNIX + aware.now) is Verdict.DONE


def test_where_the_operator_says_proceed_the_app_runs_flagged(aware: Any, node: Callable[..., Node]) -> None:
    aware.callee = node(on_unknown_base="proceed")
    inbound = aware.call()
    assert (aware.outcomes, aware.runs) == (["run"], 1)
    assert (inbound.scope.source, inbound.scope.incomplete) == ("none", True)
    assert (inbound.event, inbound.ack_kind) == ("otelctx.context.proceeded", "nack")
    assert aware.client.lost == "no_ack"
    aware.call()
    assert aware.kinds[-1] == "full"


def test_a_header_too_large_is_taken_off_for_one_retry(wire: Any, chat: Scope) -> None:
    TIER.set("gold")
    exchange = wire.begin()
    assert exchange.close(431, [], 1.0, 1.0) is Verdict.RESEND
    assert (exchange.headers, exchange.members, exchange.kind) == ([], {}, None)
    assert exchange.close(200, [], 1.0, 1.0) is Verdict.DONE
    assert wire.begin().headers == []
