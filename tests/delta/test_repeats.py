"""What a sender says may be repeated without asking it: never more than what it would say again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otelctx.context.state import EMPTY
from otelctx.delta.held import HeldBase
from otelctx.delta.limits import Limits
from otelctx.delta.messages import Ack, AckKind, Held, NackReason
from otelctx.delta.sender import BaggageMode, LinkState, Offer, Reply, Sender

STATE = EMPTY.put("session.id", "s").put("user.tier", "gold")


class Link:
    def __init__(self, baggage: BaggageMode = "until_ack", table: int = 1, acks: int = 4) -> None:
        self.sender = Sender(Limits(), baggage=baggage, table=table)
        self.now = 0.0
        for _ in range(acks):
            self.offer = self.ask()
            self.hear(self.ack(table=table))

    def ask(self, path: str = "/", safe: bool = False) -> Offer:
        return self.sender.offer(STATE, path=path, safe=safe, must_be_full=False, now=self.now)

    @staticmethod
    def ack(boot_id: int = 1, held: Held = Held.PROCESS, table: int = 1) -> Ack:
        return Ack(AckKind.ACK, STATE.root[:8], held, boot_id, table=table)

    def hear(self, ack: Ack | None, offer: Offer | None = None, status: int = 200) -> None:
        self.sender.close(offer or self.offer, Reply(status, ack, False, False, False), self.now)

    def base(self, offer: Offer | None = None, safe: bool = False) -> HeldBase | None:
        return self.sender.repeats(offer or self.offer, safe, self.now)


def test_a_ref_to_an_aware_link_may_be_repeated_while_its_base_is_held() -> None:
    link = Link()
    base = link.base()
    assert base is not None
    assert (base.root, base.until) == (STATE.root, 60.0)
    assert link.ask() == link.offer


def test_what_every_worker_holds_has_no_end_until_it_is_forgotten() -> None:
    link = Link()
    link.hear(link.ack(held=Held.SHARED))
    base = link.base()
    assert base is not None
    assert base.until == float("inf")
    link.hear(Ack(AckKind.NACK, STATE.root[:8], boot_id=1, reason=NackReason.UNKNOWN_BASE), status=412)
    assert base.until == float("-inf")


def test_anything_but_a_ref_is_asked_for_each_time() -> None:
    link = Link(acks=3)
    assert link.base() is None  # the last one was FULL
    link.offer = link.ask()
    assert link.base() is not None
    assert link.base(link.sender.offer(STATE, path="/", safe=False, must_be_full=True, now=0.0)) is None
    assert link.base(replace(link.offer, frame=None)) is None


def test_where_our_members_go_along_the_offer_is_asked_for_each_time() -> None:
    assert Link(baggage="always").base() is None


def test_get_is_asked_for_each_time_since_it_hangs_on_its_path() -> None:
    assert Link().base(safe=True) is None


def test_a_path_is_known_after_three_acks() -> None:
    link = Link()
    for n in range(3):
        offer = link.ask("/other")
        assert (n, link.base(offer)) == (n, None)
        link.hear(link.ack(), offer)
    assert link.base(link.ask("/other")) is not None


def test_a_link_that_is_silent_on_some_path_is_asked_each_time() -> None:
    link = Link()
    before = link.sender.changes
    link.hear(None, link.ask("/silent"))
    assert link.sender.state is LinkState.MIXED
    assert link.sender.changes != before
    assert link.base(link.ask()) is None


@pytest.mark.parametrize("held", [Held.PROCESS, Held.SHARED])
def test_another_process_is_a_change(held: Held) -> None:
    """Also for what every worker holds: its ack is an ack of the process that the link knew before."""
    link = Link()
    link.hear(link.ack(held=held))
    before = link.sender.changes
    link.now = 1.0
    link.hear(link.ack(boot_id=2, held=held), link.ask())
    assert link.sender.changes != before


def test_only_what_every_worker_holds_is_repeated_behind_a_balancer() -> None:
    link = Link()
    for boot_id in (2, 3, 1, 2):
        link.now += 1
        link.hear(link.ack(boot_id=boot_id), link.ask())
    assert link.base(link.offer) is None
    for boot_id in (3, 1):
        link.now += 1
        link.hear(link.ack(boot_id=boot_id, held=Held.SHARED), link.ask())
    assert link.base(link.offer) is not None


def test_another_revision_of_the_table_is_a_change() -> None:
    link = Link(table=2)
    assert link.base() is not None
    before = link.sender.changes
    link.hear(link.ack(table=1))
    assert link.sender.changes != before
    assert link.base() is None  # it was written in the second


def test_a_revision_that_nobody_has_named_for_long_is_not_repeated() -> None:
    link = Link(table=2)
    link.hear(link.ack(held=Held.SHARED, table=2))
    assert link.base() is not None
    link.now = 601.0
    assert link.base() is None


def test_an_expired_base_is_not_repeated() -> None:
    link = Link()
    link.now = 61.0
    assert link.base() is None


def test_repetitions_count_among_the_compact_frames() -> None:
    """Two lost bases within twenty of them are too many."""
    lost = Ack(AckKind.NACK, STATE.root[:8], boot_id=1, reason=NackReason.UNKNOWN_BASE)
    for repeated, state in ((0, LinkState.FULL_ONLY), (25, LinkState.AWARE)):
        link = Link()
        for _ in range(2):
            link.hear(link.ack(), link.ask())
            offer = link.ask()
            for _ in range(repeated):
                link.sender.repeated()
            link.hear(lost, offer, status=412)
        assert link.sender.state is state
