"""What a hostile or unlucky network can do to an exchange, one test a report: it costs bytes, and no more."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.context.current import ContextKey, UpKey, session
from otelctx.context.scope import Scope
from otelctx.exchange.client import Verdict
from otelctx.exchange.node import Node

TIER = ContextKey("threats.tier", str)
PUBLIC = ContextKey("threats.public", str, visibility="public")
SPENT = UpKey("threats.spent", int, rule="sum")


def lines(exchange: Any) -> list[bytes | str]:
    return [value for _, value in exchange.headers]


@pytest.fixture
def aware(wire: Any, chat: Scope) -> Any:
    """A link on which compact frames go, and its session."""
    TIER.set("t0")
    for _ in range(4):
        wire.call()
    assert wire.kinds[-1] == "ref"
    return wire


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_requests_that_overtake_each_other_each_arrive_with_their_own_state(aware: Any, order: tuple[int, ...]) -> None:
    """Each DELTA is against an acknowledged base and never against the message before it."""
    sent = []
    for n in range(3):
        TIER.set(f"t{n + 1}" * 20)
        sent.append(aware.begin())
    assert {exchange.kind for exchange in sent} == {"delta"}
    for n in order:
        assert aware.open(lines(sent[n])).scope.state["threats.tier"] == f"t{n + 1}" * 20


def test_a_delta_that_is_lost_does_no_harm_to_the_next_one(aware: Any) -> None:
    TIER.set("lost")
    aware.begin().failed()
    TIER.set("next")
    assert aware.call().scope.state["threats.tier"] == "next"
    assert aware.outcomes[-1] == "accepted"


def test_a_duplicate_yields_the_same_state_and_the_same_ack(aware: Any) -> None:
    for change in (None, "changed"):
        if change:
            TIER.set(change)
        line = lines(aware.begin())
        twice = [aware.open(line) for _ in range(2)]
        assert twice[0].scope.state.root == twice[1].scope.state.root
        assert twice[0].ack("POST", [], aware.unix) == twice[1].ack("POST", [], aware.unix) is not None


def test_a_frame_that_a_proxy_sends_again_to_another_worker_is_refused_or_whole(
    aware: Any, node: Callable[..., Node]
) -> None:
    """The proxy repeats the same bytes. What that worker can't decode it refuses before its application runs."""
    compact = lines(aware.begin())
    for n in range(3):
        aware.callee = node()
        assert (n, aware.open(compact).outcome) == (n, "refuse")
    full = lines(aware.begin(attempt=1))
    assert aware.open(full).outcome == "accepted"


def test_every_attempt_but_the_first_is_full(aware: Any) -> None:
    assert [aware.begin(attempt=n).kind for n in range(3)] == ["ref", "full", "full"]


def test_a_412_that_is_not_of_this_exchange_is_not_answered_by_a_resend(aware: Any) -> None:
    """A service in the middle that knows nothing of us may hand on somebody else's refusal after it has done its own
    work."""
    TIER.set("before")
    other = aware.begin()
    aware.callee._bases.clear()
    refusal = aware.open(lines(other)).refusal(aware.unix)[1]
    acks = [value for name, value in refusal if name == b"otelctx-ack"]
    TIER.set("after")
    mine = aware.begin()
    assert mine.kind == "delta"
    assert mine.close(412, acks, aware.now, 1_800_000_000.0 + aware.now) is Verdict.DONE


def test_a_sender_that_starts_anew_begins_with_a_full_and_disturbs_no_base(aware: Any, node: Any) -> None:
    old, kept = aware.caller, lines(aware.begin())
    aware.caller = node()
    assert aware.begin().kind == "full"
    TIER.set("of the new one")
    aware.call()
    aware.caller = old
    assert aware.open(kept).scope.state["threats.tier"] == "t0"


def test_a_frame_is_the_same_bytes_for_the_same_state_whatever_the_trace(aware: Any) -> None:
    """A mesh may overwrite traceparent: no part of a frame's identity is taken from it. It repeats as one byte of
    HPACK for the same reason."""
    assert len({str(lines(aware.begin())) for _ in range(20)}) == 1


def test_a_strangers_frames_take_no_memory_for_bases(wire: Any, node: Callable[..., Node]) -> None:
    wire.caller = node(keys="9:" + "QUJD" * 12)
    before = wire.callee._bases.bytes
    for n in range(200):
        with session(f"s{n}"):
            TIER.set("x" * 1000)
            assert wire.call().outcome == "ignored"
    assert wire.callee._bases.bytes == before


def test_whoever_strips_the_acks_makes_it_less_compact_and_never_less_safe(aware: Any) -> None:
    """A downgrade: whole frames, and our public keys in baggage besides; nothing is taken away."""
    PUBLIC.set("yes")
    seen: list[Any] = []
    for _ in range(8):
        aware.call(lambda scope: seen.append((dict(scope.state), scope.incomplete)), tamper=lambda acks: [])
    assert all(state["threats.tier"] == "t0" and state["threats.public"] == "yes" for state, _ in seen)
    assert not any(incomplete for _, incomplete in seen)
    assert aware.kinds[-1] == "full"
    assert dict(aware.client.members) == {"threats.public": "yes"}


@pytest.mark.parametrize("how", ["cancelled", "reset", "no ack"])
def test_a_base_that_nobody_has_acknowledged_is_not_referred_to(wire: Any, chat: Scope, how: str) -> None:
    TIER.set("gold")
    for _ in range(6):
        exchange = wire.begin()
        wire.open(lines(exchange))
        if how == "no ack":
            exchange.close(200, [], wire.now, 1_800_000_000.0 + wire.now)
        else:
            exchange.failed()
        assert exchange.kind == "full"


def test_a_frame_that_is_always_refused_is_not_sent_for_ever(wire: Any, chat: Scope) -> None:
    """At most one repetition an exchange, and whole frames alone after the second that was lost."""
    for n in range(40):
        TIER.set(f"t{n}")
        wire.callee._bases.clear()
        wire.call()
    assert wire.runs == 40
    assert wire.outcomes.count("refuse") <= 2
    assert wire.kinds[-20:] == ["full"] * 20


def test_a_replay_of_an_older_state_changes_nothing_that_lasts(aware: Any) -> None:
    """It is that request's own state. Sums that come back are counted by event, so none is counted twice."""
    old = lines(aware.begin())
    TIER.set("newer")
    aware.call(lambda scope: scope.record(SPENT.spec, 5))
    replayed = aware.open(old)
    assert replayed.scope.state["threats.tier"] == "t0"
    assert aware.call().scope.state["threats.tier"] == "newer"
    assert SPENT.get() == 5
