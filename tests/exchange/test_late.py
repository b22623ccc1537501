"""Answers that go out long after the request came in: a stream of hours, a reply that takes as long.

A signature is good in its hour and the ones beside it. So whatever answers is signed when it goes out, and never with
the time of the request.
"""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.context import Context

from otelctx.context.current import UpKey, session, with_scope
from otelctx.context.scope import Scope
from otelctx.context.state import Window
from otelctx.exchange import stream
from otelctx.exchange.stream import StreamLink

HOUR = 3600.0
SPENT = UpKey("usage.tokens.output", int, rule="sum")
# Where in the hour the request comes: one hour and a second may fall into the third hour from then.
MOMENTS = [0.0, 1.0, 1800.0, 3599.0]


def _lines(exchange: Any) -> list[bytes | str]:
    return [value for _, value in exchange.headers]


@pytest.fixture(params=MOMENTS)
def late(request: pytest.FixtureRequest, wire: Any) -> Any:
    """A wire whose clock stands at a moment of an hour."""
    wire.now = HOUR - wire.unix % HOUR + request.param + wire.now
    assert wire.unix % HOUR == request.param
    return wire


@pytest.mark.parametrize("hours", [1.0, 2.0, 24.0])
def test_the_end_of_a_stream_of_hours_is_believed(late: Any, chat: Scope, hours: float) -> None:
    exchange = late.begin()
    inbound = late.open(_lines(exchange))
    exchange.close(200, [inbound.ack("POST", [], late.unix)], late.now, late.unix)
    late.now += hours * HOUR + 1.0
    inbound.scope.record(SPENT.spec, 64)
    inbound.scope.report(Window(used=9, limit=10, version=2))
    last = inbound.final_ack(late.unix)
    inbound.close()
    exchange.close(200, [last], late.now, late.unix)
    assert (exchange.ack_kind, SPENT.get(), chat.window) == ("ack", 64, Window(used=9, limit=10, version=2))


@pytest.mark.parametrize("repeated", [False, True], ids=["first", "known by heart"])
def test_a_head_that_comes_after_hours_is_believed(late: Any, chat: Scope, repeated: bool) -> None:
    for _ in range(4 if repeated else 0):
        late.call()
    exchange = late.begin()
    assert exchange.kind == ("ref" if repeated else "full")
    inbound = late.open(_lines(exchange))
    late.now += 2 * HOUR
    ack = inbound.ack("POST", [], late.unix)
    exchange.close(200, [ack], late.now, late.unix)
    assert exchange.ack_kind == "ack"


def test_what_is_known_by_heart_is_not_answered_by_what_was_signed_hours_later(wire: Any, chat: Scope) -> None:
    """The answer of a slow request is none for the quick ones of its hour."""
    for _ in range(4):
        wire.call()
    slow, quick = wire.open(_lines(wire.begin())), wire.begin()
    slow.ack("POST", [], wire.unix + 3 * HOUR)
    quick.close(200, [wire.open(_lines(quick)).ack("POST", [], wire.unix)], wire.now, wire.unix)
    assert quick.ack_kind == "ack"


@pytest.mark.parametrize("proceeds", [False, True], ids=["refuses", "proceeds"])
def test_a_nack_that_comes_after_hours_is_believed(late: Any, node: Any, chat: Scope, proceeds: bool) -> None:
    for _ in range(4):
        late.call()
    exchange = late.begin()
    late.callee = node(on_unknown_base="proceed" if proceeds else "resync")
    inbound = late.open(_lines(exchange))
    late.now += 2 * HOUR
    nack = inbound.ack("POST", [], late.unix) if proceeds else dict(inbound.refusal(late.unix)[1])[b"otelctx-ack"]
    exchange.close(200 if proceeds else 412, [nack], late.now, late.unix)
    assert exchange.ack_kind == "nack"


@pytest.mark.parametrize("fails", [False, True], ids=["accepted", "nack"])
def test_the_last_word_of_a_call_of_hours_is_believed(late: Any, node: Any, chat: Scope, fails: bool) -> None:
    for _ in range(4 if fails else 0):
        late.call()
    exchange = late.begin()
    late.callee = node(on_unknown_base="proceed")
    inbound = late.open(_lines(exchange))
    late.now += 2 * HOUR
    exchange.close(200, [inbound.last_ack(late.unix)], late.now, late.unix)
    assert exchange.ack_kind == ("nack" if fails else "ack")


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Hours that have passed on both ends of a channel."""
    passed = [0.0]
    monkeypatch.setattr(stream, "time", lambda: 1_800_000_000.0 + HOUR * passed[0])
    return passed


def test_the_answer_to_a_message_that_was_handled_for_hours_is_believed(node: Any, hours: list[float]) -> None:
    here, there = StreamLink(node()), StreamLink(node())
    with session("chat-1") as scope:
        received = there.decode(here.encode(with_scope(scope, Context())))
        hours[0] = 2.0
        with received.entered():
            SPENT.record(7)
            told = there.answer(received)
        assert told is not None
        assert here.decode(told).control
        assert SPENT.get() == 7
