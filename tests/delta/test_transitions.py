"""What each reply does in each state of a link."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from otelctx.context.state import EMPTY
from otelctx.delta.limits import Limits
from otelctx.delta.messages import Ack, AckKind, Held, NackReason
from otelctx.delta.sender import AFTER_PENALTY, RESENDS, TRANSITIONS, Event, LinkState, Offer, Reply, Sender, Verdict

A = EMPTY.put("session.id", "s").put("user.tier", "gold").put("user.id", "u-1234567890")


class Link:
    """A sender whose clock moves by a second with each exchange."""

    def __init__(self) -> None:
        self.sender = Sender(Limits())
        self.now = 0.0

    def offer(self, path: str = "/", *, full: bool = False) -> Offer:
        self.now += 1
        return self.sender.offer(A, path=path, safe=False, must_be_full=full, now=self.now)

    def close(self, offer: Offer, status: int, kind: AckKind | None = None, **ack: object) -> Verdict:
        root = b"" if offer.frame is None else offer.frame.root[:8]
        held = Held.PROCESS if kind is AckKind.ACK else Held.NONE
        told = None if kind is None else Ack(kind, root, **({"held": held, "boot_id": 1} | ack))  # type: ignore[arg-type]
        return self.sender.close(offer, Reply(status, told, True, False, False), self.now)[0]

    def acked(self) -> None:
        self.close(self.offer(full=True), 200, AckKind.ACK)

    def unknown(self) -> None:
        pass

    def aware(self) -> None:
        for _ in range(3):
            self.acked()

    def mixed(self) -> None:
        self.aware()
        self.close(self.offer("/unaware"), 200)

    def full_only(self) -> None:
        self.aware()
        self.close(self.offer(), 200, AckKind.NACK, reason=NackReason.ROOT)

    def w3c_only(self) -> None:
        self.close(self.offer(), 431)


NACK = AckKind.NACK
REPLIES: dict[str, tuple[int, AckKind | None, dict[str, object]]] = {
    "ack": (200, AckKind.ACK, {}),
    "ack of an error": (500, AckKind.ACK, {}),
    "silence": (204, None, {}),
    "another status": (429, None, {}),
    "412": (412, None, {}),
    "412 + NACK": (412, NACK, {"reason": NackReason.UNKNOWN_BASE}),
    "NACK base": (200, NACK, {"reason": NackReason.UNKNOWN_BASE}),
    "NACK root": (200, NACK, {"reason": NackReason.ROOT}),
    "NACK limit": (200, NACK, {"reason": NackReason.LIMIT}),
    "NACK table": (200, NACK, {"reason": NackReason.TABLE}),
    "431": (431, None, {}),
    "494": (494, None, {}),
}
U, AW, M, F, W = LinkState
IN: dict[LinkState, Callable[[Link], None]] = {
    U: Link.unknown,
    AW: Link.aware,
    M: Link.mixed,
    F: Link.full_only,
    W: Link.w3c_only,
}
#                         UNKNOWN AWARE MIXED FULL_ONLY W3C_ONLY, after one such reply
AFTER: dict[str, tuple[LinkState, ...]] = {
    "ack":               (U, AW, M, F, W),
    "ack of an error":   (U, AW, M, F, W),
    "silence":           (U, M, M, F, W),
    "another status":    (U, AW, M, F, W),
    "412":               (U, AW, M, F, W),
    "412 + NACK":        (U, AW, M, F, W),
    "NACK base":         (U, AW, M, F, W),
    "NACK root":         (F, F, F, F, W),
    "NACK limit":        (F, F, F, F, W),
    "NACK table":        (U, AW, M, F, W),
    "431":               (W, W, W, W, W),
    "494":               (W, W, W, W, W),
}  # fmt: skip


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("before", list(LinkState))
def test_each_reply_in_each_state(before: LinkState, reply: str) -> None:
    link = Link()
    IN[before](link)
    assert link.sender.state is before
    status, kind, ack = REPLIES[reply]
    offer = link.offer()
    assert offer.compact is (before in (AW, M))
    verdict = link.close(offer, status, kind, **ack)
    assert link.sender.state is AFTER[reply][list(LinkState).index(before)]
    expected = Verdict.DONE
    if status in (431, 494):  # where there is no frame, baggage of ours was in it
        expected = Verdict.RESEND_PLAIN
    if reply == "412 + NACK" and offer.compact:
        expected = Verdict.RESEND_FULL
    assert verdict is expected


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("now", [M, F, W])
def test_a_reply_from_before_the_last_transition_does_not_move_the_state(now: LinkState, reply: str) -> None:
    """Ten requests in flight that report the same trouble are one trouble, and none prolongs or lifts a penalty."""
    link = Link()
    link.aware()
    old = [link.offer() for _ in range(5)]
    status, kind, ack = REPLIES[reply]
    if now is M:
        link.close(link.offer("/unaware"), 200)
    elif now is F:
        link.close(link.offer(), 200, NACK, reason=NackReason.ROOT)
    else:
        link.close(link.offer(), 431)
    until = link.sender._until
    for offer in old:
        link.close(offer, status, kind, **ack)
    assert (link.sender.state, link.sender._until) == (now, until)


@pytest.mark.parametrize("reply", ["412 + NACK", "NACK base"])
@pytest.mark.parametrize("before", [AW, M])
def test_the_second_lost_base_means_full_for_ten_minutes(before: LinkState, reply: str) -> None:
    link = Link()
    IN[before](link)
    status, kind, ack = REPLIES[reply]
    link.close(link.offer(), status, kind, **ack)
    link.acked()
    link.close(link.offer(), status, kind, **ack)
    assert link.sender.state is F
    link.now += 600
    link.offer()
    assert link.sender.state is U


def test_silence_on_a_path_is_remembered_even_if_the_state_has_moved_since() -> None:
    link = Link()
    link.aware()
    for _ in range(3):
        link.close(link.offer("/c", full=True), 200, AckKind.ACK)
    old = link.offer("/c")
    link.close(link.offer("/unaware"), 200)
    assert link.offer("/c").compact
    link.close(old, 200)
    assert not link.offer("/c").compact
    assert link.offer("/").compact


def test_a_worker_that_ran_for_hours_and_is_replaced_under_load_costs_no_penalty() -> None:
    """Each of many sessions in flight loses its base to one restart."""
    link = Link()
    link.aware()
    link.now = 7200
    link.acked()
    offers = [link.offer() for _ in range(20)]
    link.now += 1
    for offer in offers:
        link.close(offer, 412, NACK, reason=NackReason.UNKNOWN_BASE, boot_id=2)
    assert link.sender.state is AW
    link.close(link.offer(), 200, AckKind.ACK, boot_id=2)
    assert link.offer().compact


def test_a_base_that_a_replaced_process_still_acknowledges_is_not_used() -> None:
    link = Link()
    link.aware()
    late = link.offer(full=True)
    other = EMPTY.put("session.id", "other")
    link.now += 1
    offer = link.sender.offer(other, path="/", safe=False, must_be_full=False, now=link.now)
    link.now += 1
    link.close(offer, 200, AckKind.ACK, boot_id=2)
    link.close(late, 200, AckKind.ACK, boot_id=1)
    assert not link.offer().compact
    link.close(late, 200, AckKind.ACK, boot_id=1, held=Held.SHARED)
    assert link.offer().compact  # where it is shared, every process finds it


def test_a_nack_for_want_of_a_base_to_a_frame_that_needs_none_says_nothing() -> None:
    link = Link()
    link.aware()
    for _ in range(5):
        link.close(link.offer(full=True), 200, NACK, reason=NackReason.UNKNOWN_BASE)
    assert link.sender.state is AW
    assert link.offer().compact


def test_the_tables_speak_of_every_state_and_no_resend_comes_without_an_event() -> None:
    assert set(AFTER_PENALTY) == {M, F, W}
    assert set(TRANSITIONS.values()) == {AW, M, F, W}
    assert set(RESENDS) == {Event.BASE_LOST, Event.HEADER_REFUSED}
    assert Event.NO_EVIDENCE not in {event for _, event in TRANSITIONS}
