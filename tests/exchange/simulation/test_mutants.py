"""The simulator finds what it is there to find: each broken party is caught, and by the complaint that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from otelctx.delta import bases, sender
from otelctx.delta.bases import BaseCache
from otelctx.delta.messages import Ack, Held
from otelctx.delta.receiver import Accepted, Receiver
from otelctx.delta.sender import Event, Sender, Verdict
from otelctx.exchange import server
from otelctx.exchange.client import ClientExchange
from otelctx.exchange.node import Node

Patch = Callable[[pytest.MonkeyPatch], None]


def no_root_check(patch: pytest.MonkeyPatch) -> None:
    """A receiver that takes any base under the prefix for the right one, where prefixes are short."""

    def apply(self: Any, frame: Any, base: Any, client: str, domain: str, signed: bool, cost: int) -> Accepted:
        state = base.apply(frame.put, frame.delete)
        self._bases.put(domain, state, client)
        return Accepted(frame.kind, state, domain, signed, Held.PROCESS, cost)

    patch.setattr(bases, "BASE_BYTES", 1)
    patch.setattr(Receiver, "_apply", apply)


def a_base_without_an_ack(patch: pytest.MonkeyPatch) -> None:
    """A sender that takes what it has sent for what is held."""
    offer = Sender.offer

    def hopeful(self: Sender, state: Any, **options: Any) -> Any:
        found = offer(self, state, **options)
        self._held.keep(state, Held.SHARED, options["now"])
        return found

    patch.setattr(Sender, "offer", hopeful)


def any_ack_is_ours(patch: pytest.MonkeyPatch) -> None:
    """A sender that does not look whose ack it is, where caches keep acks."""
    close = Sender.close

    def credulous(self: Sender, offer: Any, reply: Any, now: float) -> Any:
        ack = reply.ack
        if ack is not None and offer.frame is not None:
            reply = replace(reply, ack=replace(ack, root=offer.frame.root[:8]))
        return close(self, offer, reply, now)

    def read(self: ClientExchange, lines: Any, unix: float) -> Ack | None:
        return self._node.read_ack(lines, unix) if lines else None

    patch.setattr(server, "_uncached", lambda headers: True)
    patch.setattr(Sender, "close", credulous)
    patch.setattr(ClientExchange, "_read", read)


def acks_that_caches_keep(patch: pytest.MonkeyPatch) -> None:
    """A receiver that acks what a shared cache may serve to another."""
    patch.setattr(server, "_uncached", lambda headers: True)


def events_counted_each_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Node, "first_time", lambda self, event: True)
    patch.setattr(server, "_uncached", lambda headers: True)


def a_part_for_the_whole(patch: pytest.MonkeyPatch) -> None:
    """A receiver that, told to proceed without a base, lets the application run with what the DELTA puts."""
    missing = Receiver._missing

    def partial(self: Any, need: Any) -> Any:
        if need.frame.put:
            base = self._bases.get("none", b"") or bases.State()
            return Accepted(need.frame.kind, base.apply(need.frame.put, ()), need.domain, need.signed, Held.NONE, 1)
        return missing(self, need)

    patch.setattr(Receiver, "_missing", partial)


def resent_though_the_app_ran(patch: pytest.MonkeyPatch) -> None:
    """A sender that repeats what an application answered without its context."""
    patch.setattr(sender, "RESENDS", {**sender.RESENDS, Event.SILENT: Verdict.RESEND_FULL})


def one_process_is_as_good_as_another(patch: pytest.MonkeyPatch) -> None:
    """A sender that takes no notice of boot ids behind a balancer."""
    note = Sender._note
    patch.setattr(Sender, "_note", lambda self, offer, ack, now: note(self, offer, replace(ack, boot_id=1), now))


def values_of_one_session_for_another(patch: pytest.MonkeyPatch) -> None:
    """A base cache that gives out whatever was put last."""
    get = BaseCache.get

    def last(self: Any, domain: str, root: bytes) -> Any:
        found = get(self, domain, root)
        return found if found is None else next(reversed(self._by_prefix.values())).state

    patch.setattr(BaseCache, "get", last)
    patch.setattr(Receiver, "_apply", _unchecked)


def _unchecked(self: Any, frame: Any, base: Any, client: str, domain: str, signed: bool, cost: int) -> Accepted:
    state = base.apply(frame.put, frame.delete)
    held = Held.PROCESS if self._bases.put(domain, state, client) else Held.NONE
    return Accepted(frame.kind, state, domain, signed, held, cost)


ONE: dict[str, Any] = {"workers": 1}
CASES: list[tuple[Patch, dict[str, Any], str]] = [
    (no_root_check, ONE, "silent"),
    (values_of_one_session_for_another, ONE, "silent"),
    (a_part_for_the_whole, {**ONE, "proceed": True}, "silent"),
    (a_base_without_an_ack, ONE, "unacked"),
    (any_ack_is_ours, ONE, "overcounted"),
    (resent_though_the_app_ran, ONE, "twice"),
]


@pytest.mark.parametrize(("mutant", "origin", "named"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_each_broken_party_is_caught(
    sim: Any, monkeypatch: pytest.MonkeyPatch, mutant: Patch, origin: dict[str, Any], named: str
) -> None:
    def complaints() -> set[str]:
        world = sim.chatter(sim.world([origin], senders=3), 600, faults=0.1, sessions=20, cacheable=0.5)
        return {complaint.partition(":")[0] for complaint in world.complaints}

    assert complaints() == set()
    mutant(monkeypatch)
    assert named in complaints()


def test_a_sender_that_does_not_see_the_balancer_is_caught_by_its_refusals(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> int:
        world = sim.world([{"workers": 4, "balance": "random"}], senders=1)
        return sum(call.refused for call in sim.chatter(world, 300, sessions=3).calls)

    assert refused() <= 2
    one_process_is_as_good_as_another(monkeypatch)
    monkeypatch.setattr(sender.NackBudget, "spent", lambda self, switch: False)
    assert refused() > 50


def test_a_sender_that_never_counts_acks_is_caught_by_its_share(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sender, "_note", lambda self, offer, ack, now: None)
    count, share = sim.chatter(sim.world([ONE]), 300, common=False).compact_share()
    assert count > 200
    assert share < 0.05


@pytest.mark.parametrize(("mutant", "other"), [(acks_that_caches_keep, 1), (events_counted_each_time, 0)])
def test_a_sum_that_a_cache_serves_again_is_caught(
    sim: Any, monkeypatch: pytest.MonkeyPatch, mutant: Patch, other: int
) -> None:
    """To another sender of the same session, who can't know that it has been counted, or to the same one."""

    def complaints() -> list[str]:
        world = sim.world([ONE])
        for caller in (0, other):
            world.call(caller, "s", method="GET", path="/cached", cacheable=True)
        return [complaint.partition(":")[0] for complaint in world.complaints]

    assert complaints() == []
    mutant(monkeypatch)
    assert complaints() == ["overcounted"]


def test_an_application_that_runs_for_a_refused_request_is_caught(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that lets it run first and then answers 412 as if it had not."""
    refusal = server.ServerExchange.refusal
    world = sim.world([ONE], senders=1)
    for _ in range(4):
        world.call(0, "s")
    world.restart(0)

    def late(self: Any, now: float) -> Any:
        world._run(world.calls[-1], self, False)
        return refusal(self, now)

    monkeypatch.setattr(server.ServerExchange, "refusal", late)
    world.call(0, "s")
    assert [complaint.partition(":")[0] for complaint in world.complaints] == ["twice"]


def test_a_refusal_is_no_ack_of_the_base_that_was_missing(sim: Any) -> None:
    world = sim.world([ONE], senders=1)
    for _ in range(4):
        world.call(0, "s")
    world.forget(0)
    before = set(world.acked[0, "o0"])
    call = world.call(0, "s", change=(sim.keys["tier"], "silver"))
    assert (call.kinds, call.refused) == (["delta", "full"], 1)
    assert world.acked[0, "o0"] - before == {call.meant.root}
