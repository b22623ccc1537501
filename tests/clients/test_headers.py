"""The headers of a copy: each of ours once, however often a request is handed on, sent again or copied from another."""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider

from otelctx.clients.headers import Headers, outgoing
from otelctx.context.current import ContextKey, session
from otelctx.exchange.client import begin
from otelctx.exchange.node import Node

PUBLIC = ContextKey("clients.headers.public", str, visibility="public")


@pytest.fixture
def send(node: Callable[..., Node]) -> Callable[[Headers], Headers]:
    party = node()

    def once(present: Headers, host: str = "localhost", **foreign: str) -> Headers:
        exchange = begin(
            party, scheme="http", host=host, port=80, method="POST", path="/", body=1, now=0.0, unix=time()
        )
        current = trace.set_span_in_context(TracerProvider(shutdown_on_exit=False).get_tracer("t").start_span("s"))
        for name, value in foreign.items():
            current = baggage.set_baggage(name, value, current)
        return outgoing(present, exchange, current, party.registry)

    return once


def test_to_inject_over_and_over_does_not_make_it_longer(send: Any) -> None:
    """A request object that is sent again, or whose headers are the last request's, must not grow until it is refused
    as too large."""
    with session("chat-1", timeout=50):
        PUBLIC.set("gold")
        lines: Headers = [(b"host", b"h"), (b"baggage", b"theirs=1")]
        sizes = set()
        for _ in range(20):
            lines = send(lines, other="2")
            names = [name.lower() for name, _ in lines]
            assert len(names) == len(set(names)), names
            sizes.add(sum(len(name) + len(value) for name, value in lines))
    assert len(sizes) == 1
    members = dict(lines)[b"baggage"].split(b",")
    assert sorted(members) == [b"clients.headers.public=gold", b"other=2", b"theirs=1"]


def test_what_an_inbound_request_has_left_of_ours_is_taken_off_whatever_its_case(send: Any) -> None:
    left = [(b"OTELCTX", b":AAAA:"), (b"Otelctx-Ack", b"x"), (b"otelctx-timeout-ms", b"9"), (b"OtelCtx-New", b"y")]
    for host in ("localhost", "api.example.com"):
        assert [name for name, _ in send(left, host) if name.lower().startswith(b"otelctx")] == []


def test_our_members_do_not_go_to_strangers_and_other_peoples_do(send: Any) -> None:
    with session("chat-1"):
        PUBLIC.set("gold")
        left = [(b"baggage", b"clients.headers.public=old,theirs=1")]
        assert dict(send(left, "api.example.com"))[b"baggage"] == b"theirs=1"


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b", "\u20ac", "a b+c", "\x7f"])
def test_no_value_can_end_its_header(send: Any, value: str) -> None:
    with session("chat-1"):
        PUBLIC.set(value)
        lines = send([], theirs=value)
    for name, line in lines:
        assert not set(line) & set(b"\r\n\0"), name
        assert line.isascii()


def test_a_session_id_with_line_breaks_is_carried_and_breaks_nothing(send: Any) -> None:
    with session("a\r\nb"):
        lines = send([])
    assert not [line for _, line in lines if set(line) & set(b"\r\n")]
