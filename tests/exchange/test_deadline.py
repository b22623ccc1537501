"""A deadline goes down with a call as what is left of it, to whom it may go, and is believed from whom it may come."""

from __future__ import annotations

import math
from typing import Any

import pytest

from otelctx.context import current
from otelctx.context.current import ContextKey, current_scope, session
from otelctx.context.scope import Scope
from otelctx.errors import ContextTypeError
from otelctx.exchange.client import Verdict

TIER = ContextKey("deadline.tier", str)
NOW = 1000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, wire: Any) -> None:
    """The caller's own clock stands still at ``NOW``; the wire is told the same."""
    monkeypatch.setattr(current, "monotonic", lambda: NOW)
    wire.now = NOW


# whose deadline it is


def test_an_inner_deadline_is_never_later_than_an_outer_one() -> None:
    with session("a", timeout=10) as outer, session("b", timeout=60) as inner:
        assert (outer.deadline, inner.deadline) == (NOW + 10, NOW + 10)
        with session("c", timeout=5) as shorter, session("d") as last:
            assert (shorter.deadline, last.deadline) == (NOW + 5, NOW + 5)
    with session("e") as none:
        assert none.deadline is None


def test_the_earliest_of_several_counts() -> None:
    scope = Scope()
    for deadline, then in ((9.0, 9.0), (12.0, 9.0), (7.5, 7.5), (math.inf, 7.5)):
        scope.limit(deadline)
        assert scope.deadline == then


@pytest.mark.parametrize("timeout", [0, -1, math.nan, -math.inf])
def test_a_timeout_is_above_zero(timeout: float) -> None:
    with pytest.raises(ContextTypeError, match="timeout"), session("a", timeout=timeout):
        pass
    assert current_scope() is None


# what goes out


def test_what_is_left_goes_out_in_two_digits(wire: Any) -> None:
    with session("a", timeout=12.34):
        assert wire.begin().timeout == "12000"
        assert wire.begin(now=NOW + 12).timeout == "340"
        assert wire.begin(now=NOW + 100).timeout == "0", "it has passed, and who serves it need not begin"


def test_without_a_deadline_nothing_is_said(wire: Any, chat: Scope) -> None:
    assert wire.begin().timeout is None


def test_without_any_context_a_deadline_is_said_all_the_same(wire: Any) -> None:
    scope = Scope()
    scope.limit(NOW + 5)
    tokens = current.attach(current.with_scope(scope), scope)
    try:
        exchange = wire.begin()
    finally:
        current.detach(tokens)
    assert (exchange.kind, exchange.timeout) == (None, "5000")


def test_a_host_outside_is_not_told(wire: Any) -> None:
    with session("a", timeout=5):
        assert wire.begin(host="api.example.com").timeout is None


def test_the_second_attempt_says_what_is_left_then(wire: Any) -> None:
    with session("a", timeout=60):
        for _ in range(4):
            wire.call()
        exchange = wire.begin()
        wire.callee._bases.clear()
        refused = wire.open([value for _, value in exchange.headers])
        acks = [value for name, value in refused.refusal(wire.unix)[1] if name == b"otelctx-ack"]
        assert exchange.timeout == "60000"
        assert exchange.close(412, acks, NOW + 7, 1_800_000_000.0 + NOW) is Verdict.RESEND
        assert (exchange.kind, exchange.timeout) == ("full", "53000")


def test_where_headers_are_too_large_it_is_left_out_as_the_frame_is(wire: Any) -> None:
    with session("a", timeout=60):
        exchange = wire.begin()
        assert exchange.close(431, [], NOW, 1_800_000_000.0) is Verdict.RESEND
        assert (exchange.headers, exchange.timeout) == ([], None)
        after = wire.begin()
        assert (after.headers, after.timeout) == ([], None)


# what is believed


def opened(wire: Any, timeout: list[bytes | str], **more: Any) -> Any:
    with session("a"):
        exchange = wire.begin()
    inbound = wire.open(more.pop("lines", [value for _, value in exchange.headers]), **more)
    inbound.limit(timeout, 50.0)
    return inbound


def test_a_deadline_beside_a_proven_frame_is_believed(wire: Any) -> None:
    assert opened(wire, [b"1500"]).scope.deadline == 51.5


def test_a_strangers_deadline_is_not(wire: Any, node: Any) -> None:
    for lines in ([], [b":AAAA:"], [b"x"], [b"a", b"b"]):
        assert opened(wire, [b"1500"], lines=lines).scope.deadline is None
    wire.caller = node(keys="9:" + "QUJD" * 12)
    assert opened(wire, [b"1500"]).scope.deadline is None


def test_a_trusted_addresss_deadline_is_believed_without_a_frame(wire: Any, node: Any) -> None:
    wire.callee = node(trusted_clients=("192.0.2.7",))
    assert opened(wire, [b"1500"], lines=[], client="192.0.2.7").scope.deadline == 51.5
    assert opened(wire, [b"1500"], lines=[], client="192.0.2.8").scope.deadline is None


@pytest.mark.parametrize("value", [b"", b"-5", b"1e3", b"soon", b"1.5", b"9" * 9, b"5,5", b"\xb2"])
def test_rubbish_is_no_deadline_and_costs_nothing(wire: Any, value: bytes) -> None:
    inbound = opened(wire, [value])
    assert (inbound.outcome, inbound.scope.deadline) == ("accepted", None)


def test_a_repeated_one_is_none(wire: Any) -> None:
    assert opened(wire, [b"10", b"20"]).scope.deadline is None


def test_it_never_extends_what_is_there(wire: Any) -> None:
    inbound = opened(wire, [b"1500"])
    inbound.limit([b"90000"], 50.0)
    assert inbound.scope.deadline == 51.5
    inbound.limit([b"0"], 50.0)
    assert inbound.scope.deadline == 50.0


def test_what_the_application_sets_in_between_may_only_be_earlier(wire: Any) -> None:
    inbound = opened(wire, [b"5000"])
    tokens = current.attach(current.with_scope(inbound.scope), inbound.scope)
    try:
        with session("b", timeout=1e6) as later:
            assert later.deadline == 55.0
    finally:
        current.detach(tokens)
