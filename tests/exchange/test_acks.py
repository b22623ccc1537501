"""What comes back: acks, up values and windows, and where they may ride."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.context import Context

from otelctx.context.current import USAGE_OUTPUT, ContextKey, UpKey, attach, detach, session
from otelctx.context.keys import KeySpec
from otelctx.context.scope import Scope
from otelctx.context.state import Window
from otelctx.delta.codec import decode_ack, encode_ack, from_header, split_mac, to_header
from otelctx.delta.messages import Ack, AckKind
from otelctx.exchange.client import Verdict
from otelctx.exchange.node import Node
from otelctx.policy.trust import ACK, Keyring

TIER = ContextKey("exchange.tier", str, visibility="public")
PROMPT = ContextKey("exchange.prompt", str)
TENANT = ContextKey("tenant.id", str)
USER = ContextKey("user.id", str)
SPENT = UpKey("exchange.spent", int, rule="sum")
LEVEL = UpKey("exchange.level", int, rule="max")
UNIX = 1_800_000_000.0
OTHER_SECRET = "1:" + base64.b64encode(b"x" * 32).decode()
PRIVATE = [(b"cache-control", b"max-age=0, Private")]


def ack_of(value: bytes | str) -> Ack:
    return decode_ack(split_mac(from_header(value))[0])


# what comes back


def test_up_values_and_window_come_back_in_the_head(wire: Any, chat: Scope) -> None:
    def app(scope: Scope) -> None:
        scope.record(SPENT.spec, 40)
        scope.record(LEVEL.spec, 3)
        scope.report(Window(used=10, limit=100, version=1))

    wire.call(app)
    wire.call(lambda scope: scope.record(SPENT.spec, 2))
    assert (SPENT.get(), LEVEL.get(), chat.window) == (42, 3, Window(used=10, limit=100, version=1))


def test_it_goes_into_the_scope_that_was_current_at_the_beginning(wire: Any, chat: Scope) -> None:
    exchange = wire.begin()
    inbound = wire.open([value for _, value in exchange.headers])
    inbound.scope.record(SPENT.spec, 5)
    with session("another"):
        exchange.close(200, [inbound.ack("POST", [], UNIX + wire.now)], 1.0, UNIX + 100)
        assert SPENT.get() == 0
    assert SPENT.get() == 5


def test_an_older_window_report_does_not_replace_a_newer_one(wire: Any, chat: Scope) -> None:
    chat.report(Window(used=50, limit=100, version=5))
    wire.call(lambda scope: scope.report(Window(used=10, limit=100, version=4)))
    assert chat.window is not None
    assert chat.window.used == 50


def test_an_ack_is_counted_once_however_often_it_is_served(wire: Any, chat: Scope) -> None:
    """A cache, or a proxy that retries, serves the same response again."""
    served: list[bytes | str] = []
    wire.call(lambda scope: scope.record(SPENT.spec, 5), tamper=lambda acks: served.extend(acks) or acks)
    for _ in range(3):
        exchange = wire.begin()
        exchange.close(200, served, 1.0, UNIX + 100)
        assert exchange.ack_kind == "ack"
    assert SPENT.get() == 5


def test_a_sum_without_an_event_id_is_not_counted(wire: Any, chat: Scope) -> None:
    def anonymous(acks: list[bytes | str]) -> list[bytes | str]:
        body = encode_ack(replace(ack_of(acks[0]), event=0), signed=True)
        return [to_header(body + wire.callee.keyring.sign(ACK, body, UNIX + 100))]

    def app(scope: Scope) -> None:
        scope.record(SPENT.spec, 5)
        scope.record(LEVEL.spec, 2)

    wire.call(app, tamper=anonymous)
    assert (SPENT.get(), LEVEL.get()) == (0, 2)


def test_an_ack_of_another_exchange_is_ignored(wire: Any, chat: Scope) -> None:
    stolen: list[bytes | str] = []
    wire.call(lambda scope: scope.record(SPENT.spec, 5), tamper=lambda acks: stolen.extend(acks) or [])
    TIER.set("silver")
    exchange = wire.begin()
    exchange.close(200, stolen, 1.0, UNIX + 100)
    assert (SPENT.get(), exchange.ack_kind) == (0, None)


@pytest.mark.parametrize("how", ["forged", "unsigned", "twice", "long", "rubbish"])
def test_an_ack_that_is_not_proven_is_ignored(wire: Any, chat: Scope, how: str) -> None:
    def tamper(acks: list[bytes | str]) -> list[bytes | str]:
        body = split_mac(from_header(acks[0]))[0]
        forged = body + Keyring.parse(OTHER_SECRET).sign(ACK, body, UNIX + 100)
        return {
            "forged": [to_header(forged)],
            "unsigned": [to_header(body)],
            "twice": [acks[0], acks[0]],
            "long": [acks[0].decode() + " " * 600 if isinstance(acks[0], bytes) else acks[0]],
            "rubbish": [":!:"],
        }[how]

    wire.call(lambda scope: scope.record(SPENT.spec, 5), tamper=tamper)
    assert (SPENT.get(), wire.client.ack_kind) == (0, None)


def test_what_a_nack_carries_is_not_counted(wire: Any, chat: Scope) -> None:
    """There is nothing to report of a request that ran without context."""

    def denied(acks: list[bytes | str]) -> list[bytes | str]:
        body = encode_ack(replace(ack_of(acks[0]), kind=AckKind.NACK), signed=True)
        return [to_header(body + wire.callee.keyring.sign(ACK, body, UNIX + wire.now))]

    wire.call(lambda scope: scope.record(SPENT.spec, 5), tamper=denied)
    assert (SPENT.get(), wire.client.ack_kind) == (0, "nack")


def test_what_is_not_declared_as_up_here_is_ignored(wire: Any, chat: Scope) -> None:
    """The callee may not set the caller's down keys, nor values of another type."""

    def app(scope: Scope) -> None:
        scope.record(KeySpec("exchange.tier", str, "up", "internal", "last"), "lead")
        scope.record(KeySpec("exchange.spent", bool, "up", "internal", "any"), True)
        scope.record(LEVEL.spec, 1)

    wire.call(app)
    assert (chat.up("exchange.tier"), SPENT.get(), LEVEL.get()) == (None, 0, 1)
    assert TIER.get() is None


def test_what_comes_after_the_scope_has_ended_is_counted_as_late(wire: Any) -> None:
    with session("gone") as scope:
        exchange = wire.begin()
    inbound = wire.open([value for _, value in exchange.headers])
    inbound.scope.record(SPENT.spec, 5)
    exchange.close(200, [inbound.ack("POST", [], UNIX + wire.now)], 1.0, UNIX + 100)
    assert (exchange.late, scope.up("exchange.spent")) == (True, None)
    window = wire.open([value for _, value in exchange.headers])
    window.scope.report(Window(used=1, limit=2))
    exchange.late = False
    exchange.close(200, [window.ack("POST", [], UNIX + wire.now)], 1.0, UNIX + 100)
    assert (exchange.late, scope.window) == (True, None)


# where an ack may ride


@pytest.mark.parametrize(
    ("method", "cache_control", "carried"),
    [
        ("POST", None, True),
        ("GET", None, False),
        ("HEAD", b"public, max-age=60", False),
        ("GET", b"no-store", True),
        ("GET", b"Max-Age=3, PRIVATE", True),
        ("GET", b'private="set-cookie"', False),
    ],
)
def test_no_ack_on_what_a_shared_cache_may_keep(
    wire: Any, chat: Scope, method: str, cache_control: bytes | None, carried: bool
) -> None:
    inbound = wire.open([value for _, value in wire.begin().headers])
    headers = [] if cache_control is None else [(b"Cache-Control", cache_control)]
    assert (inbound.ack(method, headers, UNIX + wire.now) is not None) is carried


def test_an_ack_fits_the_head_and_what_does_not_fit_comes_next(wire: Any, chat: Scope) -> None:
    keys = [UpKey(f"exchange.big.{n:02d}", str, rule="last") for n in range(8)]

    def app(scope: Scope) -> None:
        for key in keys:
            scope.record(key.spec, key.spec.name[-2:] * 50)

    sizes: list[int] = []
    wire.call(app, tamper=lambda acks: sizes.append(len(acks[0])) or acks)
    assert keys[0].get() is not None
    assert keys[7].get() is None
    for _ in range(4):
        wire.call(tamper=lambda acks: sizes.append(len(acks[0])) or acks)
    assert [key.get() for key in keys] == [key.spec.name[-2:] * 50 for key in keys]
    assert max(sizes) <= 512


def test_an_unaware_origin_changes_nothing(wire: Any, chat: Scope) -> None:
    for _ in range(5):
        exchange = wire.begin()
        assert exchange.close(200, [], 1.0, 1.0) is Verdict.DONE
        assert (exchange.kind, exchange.lost, exchange.ack_kind) == ("full", None, None)


# what comes after the head


def test_what_a_stream_records_comes_with_the_sessions_next_ack(wire: Any, chat: Scope) -> None:
    exchange = wire.begin()
    inbound = wire.open([value for _, value in exchange.headers])
    exchange.close(200, [inbound.ack("POST", [], UNIX + wire.now)], 1.0, UNIX + 100)
    inbound.scope.record(USAGE_OUTPUT.spec, 64)
    inbound.scope.report(Window(used=9, limit=10, version=2))
    inbound.close()
    inbound.close()
    assert (USAGE_OUTPUT.get(), chat.window) == (0, None)
    with session("another"):
        wire.call()
        assert USAGE_OUTPUT.get() == 0
    wire.call(lambda scope: scope.record(USAGE_OUTPUT.spec, 6))
    assert (USAGE_OUTPUT.get(), chat.window) == (70, Window(used=9, limit=10, version=2))
    wire.call()
    assert USAGE_OUTPUT.get() == 70


@pytest.mark.parametrize("owner", [TENANT, USER], ids=["tenant", "user"])
def test_what_waits_is_of_one_owner_even_if_two_have_the_same_session_id(wire: Any, chat: Scope, owner: Any) -> None:
    with owner.bound("mine"):
        wire.call()
        inbound = wire.open([value for _, value in wire.begin().headers])
        inbound.scope.record(SPENT.spec, 64)
        inbound.scope.report(Window(used=9, limit=10, version=2))
        inbound.close()
    for whose in (owner.bound("yours"), nullcontext()):
        with whose:
            for _ in range(5):
                wire.call()
        assert (SPENT.get(), chat.window) == (0, None)
    with owner.bound("mine"):
        wire.call()
    assert (SPENT.get(), chat.window) == (64, Window(used=9, limit=10, version=2))


def test_a_final_ack_and_the_next_one_count_once_for_who_reads_both(wire: Any, chat: Scope) -> None:
    def stream(reads_the_end: bool) -> None:
        exchange = wire.begin()
        inbound = wire.open([value for _, value in exchange.headers])
        exchange.close(200, [inbound.ack("POST", [], UNIX + wire.now)], 1.0, UNIX + 100)
        inbound.scope.record(SPENT.spec, 64)
        last = inbound.final_ack(UNIX + wire.now)
        inbound.close()
        assert last is not None
        assert ack_of(last).final is True
        if reads_the_end:
            exchange.close(200, [last], 1.0, UNIX + 100)

    stream(reads_the_end=True)
    assert SPENT.get() == 64
    wire.call()
    assert SPENT.get() == 64
    stream(reads_the_end=False)
    wire.call(lambda scope: scope.record(SPENT.spec, 1))
    assert SPENT.get() == 128  # what was shown goes first, and is never mixed with others
    wire.call()
    assert SPENT.get() == 129


def test_what_was_shown_comes_up_although_every_answer_has_values_of_its_own(wire: Any, chat: Scope) -> None:
    """A stream, and then answers in one piece: who can't read the stream's end still learns of it."""
    exchange = wire.begin()
    inbound = wire.open([value for _, value in exchange.headers])
    exchange.close(200, [inbound.ack("POST", [], UNIX + wire.now)], 1.0, UNIX + 100)
    inbound.scope.record(SPENT.spec, 64)
    inbound.final_ack(UNIX + wire.now)
    inbound.close()
    seen = []
    for _ in range(3):
        wire.call(lambda scope: scope.record(SPENT.spec, 1))
        seen.append(SPENT.get())
    assert seen == [64, 66, 67]


def test_what_a_get_could_not_carry_is_not_lost(wire: Any, chat: Scope) -> None:
    wire.call(lambda scope: scope.record(SPENT.spec, 5), method="GET")
    assert SPENT.get() == 0
    wire.call()
    assert SPENT.get() == 5


def test_usage_goes_up_two_hops(node: Callable[..., Node], wire: Any, chat: Scope) -> None:
    """The service in the middle adds what it used itself to what its callee did."""
    behind = type(wire)(wire.callee, node())

    def middle(scope: Scope) -> None:
        tokens = attach(Context(), scope)
        try:
            SPENT.record(1)
            behind.call(lambda worker: worker.record(SPENT.spec, 100))
        finally:
            detach(tokens)

    wire.call(middle)
    wire.call(middle)
    assert SPENT.get() == 202
