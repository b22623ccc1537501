"""``LinkPair``: what a user's test sees of a caller, a callee, and what goes wrong between them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import monotonic
from typing import Any, get_args

import pytest
from opentelemetry import trace

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.context.current import USAGE_OUTPUT, ContextKey, current_scope, session
from otelctx.context.scope import Scope
from otelctx.context.state import Window
from otelctx.errors import ConfigError
from otelctx.exchange.node import Node
from otelctx.settings import Settings
from otelctx.testing import LinkPair, ManualClock, capture
from otelctx.testing.faults import Fault

TIER = ContextKey("testing.pair.tier", str)
PUBLIC = ContextKey("testing.pair.public", str, visibility="public")
STATE = {"session.id": "chat-42", "testing.pair.tier": "gold"}


@pytest.fixture
def pair() -> LinkPair:
    return LinkPair()


@pytest.fixture
def warm(pair: LinkPair, chat: Scope) -> LinkPair:
    """Three requests on: from here a reference is enough."""
    assert [pair.send().kinds for _ in range(3)] == [["full"]] * 3
    return pair


@pytest.fixture
def chat() -> Iterator[Scope]:
    with session("chat-42") as scope, TIER.bound("gold"):
        yield scope


def spend() -> str | None:
    USAGE_OUTPUT.record(7)
    return TIER.get()


# fault → attempts as (kind, outcome, ack), what the handler saw, what the caller counts of its 7 tokens
TABLE: dict[Fault | None, tuple[list[tuple[str | None, str, str | None]], Any, int]] = {
    None: ([("ref", "accepted", "ack")], STATE, 7),
    "frame_lost": ([("ref", "none", None)], {}, 0),
    "frame_tampered": ([("ref", "ignored", None)], {}, 0),
    "ack_lost": ([("ref", "accepted", None)], STATE, 0),
    "ack_tampered": ([("ref", "accepted", None)], STATE, 0),
    "request_lost": ([("ref", "lost", None)], None, 0),
    "response_lost": ([("ref", "accepted", None)], STATE, 0),
    "restarted": ([("ref", "refuse", "nack"), ("full", "accepted", "ack")], STATE, 7),
    "other_worker": ([("ref", "refuse", "nack"), ("full", "accepted", "ack")], STATE, 7),
    "stranger": ([("full", "ignored", None)], {}, 0),
}


@pytest.mark.parametrize("fault", list(TABLE), ids=str)
def test_each_fault_is_what_it_says(warm: LinkPair, fault: Fault | None) -> None:
    attempts, seen, counted = TABLE[fault]
    sent = warm.send(spend, fault=fault)
    assert [(a.kind, a.outcome, a.ack) for a in sent.attempts] == attempts
    assert (sent.seen, sent.incomplete) == (seen, False)
    assert USAGE_OUTPUT.get() == counted
    came = fault not in ("request_lost", "response_lost")
    assert (sent.status, sent.result) == (200 if came else 0, "gold" if came and seen else None)


def test_the_table_has_every_fault_and_another_word_is_refused(pair: LinkPair) -> None:
    assert {fault for fault in TABLE if fault} == set(get_args(Fault))
    wrong: Any = "gremlins"
    with pytest.raises(ConfigError, match="no fault 'gremlins'; there are ack_lost, "):
        pair.send(fault=wrong)


@pytest.mark.parametrize("fault", [f for f in TABLE if f], ids=str)
def test_after_any_fault_the_next_request_arrives_whole(warm: LinkPair, fault: Fault) -> None:
    warm.send(spend, fault=fault)
    assert warm.send(spend).seen == STATE


def test_what_was_sent_is_told_by_kind_and_bytes(warm: LinkPair) -> None:
    ref, (delta, *_) = warm.send().attempts[0], _changed(warm)
    assert (ref.kind, delta.kind) == ("ref", "delta")
    assert 0 < ref.bytes < delta.bytes < 200
    assert 0 < ref.ack_bytes <= 512


def _changed(pair: LinkPair) -> Any:
    with TIER.bound("platinum"):
        sent = pair.send(TIER.get)
    assert sent.result == "platinum"
    return sent.attempts


def test_a_callee_that_proceeds_says_that_something_is_missing(chat: Scope) -> None:
    pair = LinkPair(callee=Settings(keys=_keys(), on_unknown_base="proceed"), caller=Settings(keys=_keys()))
    for _ in range(3):
        pair.send()
    sent = pair.send(spend, fault="restarted")
    assert [(a.kind, a.outcome, a.ack) for a in sent.attempts] == [("ref", "run", "nack")]
    assert sent.incomplete
    assert "session.id" not in (sent.seen or {})


def _keys() -> str:
    return "1:" + "QUJD" * 12


def test_a_body_that_can_not_be_sent_twice_goes_in_full(warm: LinkPair) -> None:
    assert warm.send(spend, body=None, fault="restarted").kinds == ["full"]


def test_nothing_goes_where_the_policy_of_the_caller_says_no(pair: LinkPair, chat: Scope) -> None:
    sent = pair.send(spend, host="api.example.com")
    assert ([(a.kind, a.bytes, a.outcome) for a in sent.attempts], sent.seen) == ([(None, 0, "none")], {})


def test_public_keys_go_as_baggage_to_who_trusts_the_address_alone(chat: Scope) -> None:
    pair = LinkPair(caller=Settings(frames="never"), callee=Settings(trusted_clients=("127.0.0.1",)))
    with PUBLIC.bound("yes"):
        sent = pair.send(PUBLIC.get)
    assert (sent.kinds, sent.result, sent.seen) == ([None], "yes", {"testing.pair.public": "yes"})


def test_a_get_is_acked_because_no_cache_keeps_it(warm: LinkPair) -> None:
    assert [warm.send(method="GET", path="/models").kinds[0] for _ in range(2)] == ["full", "ref"]


def test_a_window_report_comes_back(pair: LinkPair, chat: Scope) -> None:
    def report() -> None:
        scope = current_scope()
        assert scope is not None
        scope.report(Window(5, 64, version=1))

    pair.send(report)
    assert chat.window == Window(5, 64, version=1)


def test_what_a_handler_raises_is_raised_and_the_pair_goes_on(warm: LinkPair) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        warm.send(fail)
    assert warm.send(spend).seen == STATE


def test_time_passes_for_both_when_it_is_told_to_and_never_else(chat: Scope) -> None:
    clock = ManualClock()
    pair = LinkPair(clock=clock)
    for _ in range(3):
        pair.send()
    clock.advance(30)
    assert pair.send().kinds == ["ref"]
    clock.advance(100 * 3600)
    sent = pair.send(spend)
    assert (sent.kinds, sent.attempts[0].outcome, sent.attempts[0].ack) == (["full"], "accepted", "ack")
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


def test_a_deadline_arrives_as_what_is_left_of_it(pair: LinkPair) -> None:
    def left() -> float:
        scope = current_scope()
        assert scope is not None
        assert scope.deadline is not None
        return scope.deadline - monotonic()

    with session("chat-42", timeout=3600):
        assert pair.send(left).result == pytest.approx(3600, rel=0.05)
        pair.clock.advance(1800)
        assert pair.send(left).result == pytest.approx(1800, rel=0.05)


def test_the_trace_goes_on_and_the_callers_context_does_not_leak(pair: LinkPair, chat: Scope) -> None:
    inside: list[trace.SpanContext] = []
    ambient = ContextKey("testing.pair.local", str, flow="local")

    def look() -> str | None:
        inside.append(trace.get_current_span().get_span_context())
        return ambient.get()

    with capture() as seen, trace.get_tracer("test").start_as_current_span("caller"), ambient.bound("stays"):
        assert pair.send(look).result is None
    assert seen.span("POST").trace_id == seen.span("caller").trace_id == f"{inside[0].trace_id:032x}"
    assert seen.span("POST").parent_id == seen.span("caller").span_id


async def test_in_a_coroutine_send_works_and_asgi_goes_to_a_thread(pair: LinkPair, chat: Scope) -> None:
    assert pair.send(spend).result == "gold"
    sent = await asyncio.to_thread(pair.asgi, _application)
    assert sent.body == b"gold"
    with pytest.raises(RuntimeError, match=r"await asyncio\.to_thread\(pair\.asgi"):
        pair.asgi(_application)


async def _application(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    await asyncio.sleep(0)
    headers = [(b"x-seen", b"%d" % len(scope["headers"]))]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": (TIER.get() or "").encode(), "more_body": True})
    await send({"type": "http.response.body", "body": message["body"]})
    assert (await receive())["type"] == "http.disconnect"


def test_an_asgi_application_is_the_same(warm: LinkPair) -> None:
    for fault in (None, "restarted", "other_worker"):
        sent = warm.asgi(_application, body=b"!", headers=[("x-a", "1")], fault=fault)
        assert (sent.status, sent.body, sent.seen) == (201, b"gold!", STATE)
        assert (b"x-seen", b"2") in sent.headers
        for _ in range(3):
            warm.send()


def test_a_middleware_of_the_applications_own_steps_aside(warm: LinkPair) -> None:
    own = ContextMiddleware(_application, node=Node(Settings()))
    with capture() as seen:
        assert warm.asgi(own).attempts[0].outcome == "accepted"
    assert len(seen.spans) == 1


def test_hours_pass_for_an_asgi_application_too(warm: LinkPair) -> None:
    warm.clock.advance(5 * 3600)
    assert warm.asgi(_application).attempts[0].outcome == "accepted"


def test_a_pair_needs_no_network_and_no_default_node(chat: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *args: pytest.fail("a connection"))
    monkeypatch.setattr("otelctx.exchange.node.default_node", lambda: pytest.fail("the process's own node"))
    assert LinkPair().send(spend).result == "gold"
