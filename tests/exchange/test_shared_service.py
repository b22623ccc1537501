"""What the shared tier gives a service behind a balancer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from otelctx.context.current import ContextKey, session
from otelctx.context.scope import Scope
from otelctx.delta.codec import decode_ack, from_header, split_mac
from otelctx.delta.limits import Limits
from otelctx.delta.messages import AckKind, Held
from otelctx.exchange.client import Verdict
from otelctx.exchange.node import Node
from otelctx.exchange.shared import SharedTier

PROMPT = ContextKey("exchange.prompt", str)
UNIX = 1_800_000_000.0


class Service:
    """Workers of one service behind a balancer that takes them in turn."""

    def __init__(self, wire: Any, workers: list[Node]) -> None:
        self.wire = wire
        self.workers = workers
        self.turn = 0
        self.held: list[Held] = []

    async def call(self) -> tuple[str | None, list[str]]:
        """The kind of the first frame, and what it and its repetition came to."""
        wire = self.wire
        wire.now += 1.0
        wire.callee = self.workers[self.turn % len(self.workers)]
        self.turn += 1
        exchange = wire.begin()
        kind, outcomes = exchange.kind, []
        while True:
            inbound = wire.open([value for _, value in exchange.headers], may_wait=True)
            await inbound.settle()
            outcomes.append(inbound.outcome)
            await wire.callee.shared.close()
            if inbound.outcome == "refuse":
                status, head, _ = inbound.refusal(UNIX + wire.now)
                ack = dict(head)[b"otelctx-ack"]
            else:
                status, ack = 200, inbound.ack("POST", [], UNIX + wire.now)
                assert inbound.scope.source == "frame"
            read = decode_ack(split_mac(from_header(ack))[0])
            if read.kind is AckKind.ACK:
                self.held.append(read.held)
            verdict = exchange.close(status, [ack], wire.now, UNIX + wire.now)
            inbound.close()
            if verdict is Verdict.DONE:
                return kind, outcomes


@pytest.fixture
def service(wire: Any, node: Callable[..., Node], engine: Any) -> Service:
    settings = node().settings
    return Service(wire, [Node(settings, shared=SharedTier(engine, Limits(shared_deadline=60.0))) for _ in range(3)])


async def test_behind_a_balancer_frames_are_compact_all_the_same(service: Service, chat: Scope) -> None:
    seen = []
    for n in range(12):
        PROMPT.set("x" * 100 + str(n // 4))
        seen.append(await service.call())
    assert [kind for kind, _ in seen] == ["full"] * 3 + ["ref", "delta", *["ref"] * 3, "delta", *["ref"] * 3]
    assert all(outcomes == ["accepted"] for _, outcomes in seen)
    assert set(service.held) == {Held.SHARED}


async def test_a_restarted_worker_takes_over_from_the_tier_without_a_refusal(
    service: Service, chat: Scope, engine: Any
) -> None:
    service.workers = service.workers[:1]
    for _ in range(4):
        await service.call()
    service.workers = [Node(service.workers[0].settings, shared=SharedTier(engine, Limits(shared_deadline=60.0)))]
    assert await service.call() == ("ref", ["accepted"])


async def test_what_the_tier_has_lost_is_resent_once(service: Service, chat: Scope, engine: Any) -> None:
    for _ in range(3):
        await service.call()
    engine.values.clear()
    PROMPT.set("changed")
    for worker in service.workers:
        worker._bases.clear()
    assert await service.call() == ("delta", ["refuse", "accepted"])


async def test_what_is_not_confirmed_when_the_head_goes_out_is_of_the_process(
    wire: Any, chat: Scope, service: Service, engine: Any
) -> None:
    engine.gate.clear()
    wire.callee = service.workers[0]
    lines = [value for _, value in wire.begin().headers]
    inbound = wire.open(lines, may_wait=True)
    await inbound.settle()
    first = decode_ack(split_mac(from_header(inbound.ack("POST", [], UNIX + wire.now)))[0])
    engine.gate.set()
    await service.workers[0].shared.close()
    second = decode_ack(split_mac(from_header(wire.open(lines).ack("POST", [], UNIX + wire.now)))[0])
    assert (first.held, second.held) == (Held.PROCESS, Held.SHARED)


async def test_who_can_not_wait_is_refused_at_once(wire: Any, chat: Scope, service: Service) -> None:
    for _ in range(3):
        await service.call()
    lines = [value for _, value in wire.begin().headers]
    wire.callee = Node(service.workers[0].settings, shared=service.workers[0].shared)
    assert wire.open(lines).outcome == "refuse"
    waiting = wire.open(lines, may_wait=True)
    assert (waiting.outcome, waiting.kind, waiting.ack("POST", [], UNIX + wire.now)) == ("wait", None, None)
    await waiting.settle()
    assert (waiting.outcome, waiting.kind, waiting.scope.source) == ("accepted", "ref", "frame")


async def test_a_state_without_session_is_not_shared(wire: Any, service: Service, engine: Any) -> None:
    wire.callee = service.workers[0]
    with PROMPT.bound("no session"):
        inbound = wire.open([value for _, value in wire.begin().headers], may_wait=True)
    await inbound.settle()
    assert inbound.outcome == "accepted"
    await service.workers[0].shared.close()
    assert engine.values == {}


async def test_two_sessions_do_not_read_each_others_bases(service: Service, chat: Scope) -> None:
    for _ in range(4):
        await service.call()
    with session("another"):
        assert await service.call() == ("full", ["accepted"])
