"""Two worlds, of which one knows nothing by heart, live through the same and do the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.context import Context

from otelctx.context.current import with_scope
from otelctx.context.keys import KeyRegistry, KeySpec
from otelctx.context.scope import Scope
from otelctx.context.state import EMPTY, Window
from otelctx.exchange import client, server
from otelctx.exchange.client import Verdict
from otelctx.exchange.node import Node
from otelctx.settings import Settings

UNIX = 1_800_000_000.0
KEYS = ["1:" + "QUJD" * 12, "2:" + "QUJE" * 12]
TIER = KeySpec("known.tier", str)
SPENT = KeySpec("known.spent", int, "up", "internal", "sum")
LATEST = KeySpec("known.latest", str, "up", "internal", "last")


class Forgetful(dict[Any, Any]):
    """A memory for nothing."""

    def __setitem__(self, key: Any, value: Any) -> None: ...


class World:
    def __init__(self, heart: bool) -> None:
        self.heart = heart
        self.now = 3000.0
        self.registry = KeyRegistry()
        for spec in (TIER, SPENT, LATEST):
            self.registry.declare(spec)
        self.boots = 0
        self.keys = KEYS[0]
        self.caller, self.callee = self.node(), self.node()
        self.scopes = {name: Scope(EMPTY.put("session.id", name)) for name in "ab"}
        self.under_way: list[tuple[Any, int, list[Any]]] = []
        self.seen: list[object] = []

    def node(self) -> Node:
        node = Node(Settings(keys=self.keys), registry=self.registry)
        self.boots += 1
        node._boot_id = self.boots
        return self.forgetful(node)

    def forgetful(self, node: Node) -> Node:
        if not self.heart:
            node.era.standing, node.era.known, node.era.acks, node.era.wires = (Forgetful() for _ in range(4))
        return node

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def restart(self) -> None:
        self.callee = self.node()

    def drop(self) -> None:
        self.callee._bases.clear()

    def rotate(self, at: int) -> None:
        self.keys = ",".join((KEYS[at], KEYS[1 - at]))
        for node in (self.caller, self.callee):
            node.reload(Settings(keys=self.keys))
            self.forgetful(node)

    def change(self, name: str, value: str) -> None:
        self.scopes[name].set(TIER, value)

    def declare(self) -> None:
        self.registry.declare(KeySpec("known.other", str, "local"))

    def other(self, name: str) -> None:
        """A key that nobody has declared, or that stays here."""
        self.scopes[name].set(KeySpec("known.other", str), "o")

    def call(self, name: str, path: str, method: str, fate: str) -> None:
        exchange = client.begin(
            self.caller, scheme="http", host="localhost", port=80, method=method, path=path, body=1,
            context=with_scope(self.scopes[name], Context()), now=self.now, unix=UNIX + self.now,
        )  # fmt: skip
        status, acks = self.serve(exchange, method, fate)
        if fate == "late":
            self.under_way.append((exchange, status, acks))
        elif exchange.close(status, acks, self.now, UNIX + self.now) is Verdict.RESEND:
            self.tell(exchange)
            exchange.close(*self.serve(exchange, method, "ok"), self.now, UNIX + self.now)
        self.tell(exchange)

    def arrive(self) -> None:
        if self.under_way:
            exchange, status, acks = self.under_way.pop(0)
            self.seen.append(exchange.close(status, acks, self.now, UNIX + self.now))
            self.tell(exchange)

    def tell(self, exchange: Any) -> None:
        self.seen.append((exchange.kind, exchange.headers, exchange.lost, exchange.late))
        self.seen.append((exchange.ack_kind, exchange.members))
        for scope in self.scopes.values():
            self.seen.append((scope.ups(), scope.window))

    def serve(self, exchange: Any, method: str, fate: str) -> tuple[int, list[Any]]:
        lines = [value for _, value in exchange.headers]
        inbound = server.open(
            self.callee, lines=lines, baggage=None, client="10.0.0.1", forwarded=None, now=UNIX + self.now
        )
        self.seen.append((inbound.outcome, inbound.kind, inbound.trusted, inbound.scope.state.root))
        if inbound.outcome == "refuse":
            status, head, _ = inbound.refusal(UNIX + self.now)
            return status, [value for name, value in head if name == b"otelctx-ack"]
        if fate == "spends":
            inbound.scope.record(SPENT, 2)
            inbound.scope.report(Window(1, 9, version=len(self.seen)))
        ack = inbound.ack(method, [], UNIX + self.now)
        if fate == "spends late":
            inbound.scope.record(SPENT, 1)
            inbound.scope.record(LATEST, "x")
        inbound.close()
        return (502 if fate == "fails" else 200), [] if ack is None or fate in ("fails", "stripped") else [ack]

    def inside(self) -> object:
        link = self.caller.links.get(("http", "localhost", 80))
        sender, bases = link.sender, self.callee._bases
        return sender.state, sender.bytes, bases.bytes, sorted(map(str, bases._by_prefix)), len(self.callee.pending)


NAMES = st.sampled_from("ab")
STEPS = st.one_of(
    st.tuples(
        st.just("call"),
        NAMES,
        st.sampled_from(["/v1", "/v1", "/v2"]),
        st.sampled_from(["POST", "POST", "POST", "GET"]),
        st.sampled_from(["ok", "ok", "ok", "spends", "spends late", "fails", "stripped", "late"]),
    ),
    st.tuples(st.just("arrive")),
    # The orders of use and times of acks are kept up to a second: what lies between would show.
    st.tuples(st.just("wait"), st.sampled_from([1.0, 1.0, 7.0, 61.0, 601.0, 3599.0])),
    st.tuples(st.just("change"), NAMES, st.sampled_from(["gold", "lead"])),
    st.sampled_from([("restart",), ("drop",), ("rotate", 0), ("rotate", 1), ("declare",), ("other", "a")]),
)
SOME_CALLS = [("call", "a", "/v1", "POST", "ok")] * 5


@pytest.mark.parametrize("calls", [0, 5])
@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEPS, max_size=40))
def test_what_is_known_by_heart_changes_nothing(calls: int, steps: list[tuple[Any, ...]]) -> None:
    mine, other = World(heart=True), World(heart=False)
    for name, *args in SOME_CALLS[:calls] + steps:
        for world in (mine, other):
            getattr(world, name)(*copy.copy(args))
        assert mine.seen == other.seen
        assert mine.inside() == other.inside()
    assert not other.caller.era.standing
    assert not other.callee.era.known


def test_an_uneventful_life_is_known_by_heart() -> None:
    world = World(heart=True)
    for _ in range(5):
        world.call("a", "/v1", "POST", "ok")
    assert len(world.caller.era.standing) == len(world.callee.era.known) == 1
