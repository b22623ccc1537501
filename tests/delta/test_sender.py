from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.state import EMPTY, State
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import encode_frame, to_header
from otelctx.delta.limits import Limits
from otelctx.delta.messages import Ack, AckKind, FrameKind, Held, NackReason
from otelctx.delta.receiver import Accepted, NeedBase, Receiver
from otelctx.delta.sender import SENDS, LinkState, Offer, Reply, Sender, Verdict

A = EMPTY.put("session.id", "s").put("user.tier", "gold").put("user.id", "u-1234567890")
B = A.put("user.tier", "silver")


class Link:
    """A sender and the replies of an origin."""

    def __init__(self, **options: object) -> None:
        self.sender = Sender(Limits(), **options)  # type: ignore[arg-type]
        self.now = 0.0

    def offer(self, state: State = A, *, path: str = "/", safe: bool = False, full: bool = False) -> Offer:
        return self.sender.offer(state, path=path, safe=safe, must_be_full=full, now=self.now)

    def kind(self, state: State = A, **options: bool) -> str | None:
        frame = self.offer(state, **options).frame  # type: ignore[arg-type]
        return frame.kind.name if frame is not None else None

    def reply(
        self,
        offer: Offer,
        status: int = 200,
        ack: Ack | None = None,
        *,
        replayable: bool = True,
        safe: bool = False,
        idempotent: bool = False,
    ) -> Verdict:
        verdict, self.lost = self.sender.close(offer, Reply(status, ack, replayable, safe, idempotent), self.now)
        return verdict

    def ack(self, offer: Offer, *, boot: int = 1, held: Held = Held.PROCESS, status: int = 200) -> Verdict:
        assert offer.frame is not None
        return self.reply(offer, status, Ack(AckKind.ACK, offer.frame.root[:8], held, boot))

    def nack(self, offer: Offer, reason: NackReason, status: int = 412, boot: int = 1, **options: bool) -> Verdict:
        assert offer.frame is not None
        return self.reply(
            offer, status, Ack(AckKind.NACK, offer.frame.root[:8], boot_id=boot, reason=reason), **options
        )

    def aware(self, **options: int) -> Link:
        for _ in range(3):
            self.ack(self.offer(full=True), **options)  # type: ignore[arg-type]
        return self


def test_three_acks_in_a_row_then_ref_then_delta() -> None:
    link = Link()
    for _ in range(3):
        offer = link.offer()
        assert offer.frame is not None
        assert (offer.frame.kind, offer.baggage) == (FrameKind.FULL, True)
        link.ack(offer)
    assert link.sender.state is LinkState.AWARE
    assert link.kind(A) == "REF"
    assert link.kind(B) == "DELTA"
    assert link.offer().baggage is False


def test_a_delta_goes_only_where_it_is_smaller_than_everything() -> None:
    link = Link().aware()
    changed = EMPTY.put("session.id", "s").put("limit.tokens.total", 5)
    assert link.kind(changed.put("user.id", "u-1234567890")) == "DELTA"
    assert link.kind(changed) == "FULL"  # three things changed, two are left


def test_concurrent_first_requests_are_all_full() -> None:
    link = Link()
    offers = [link.offer() for _ in range(10)]
    assert {o.frame.kind for o in offers if o.frame} == {FrameKind.FULL}


def test_silence_resets_the_count_and_never_removes_information() -> None:
    link = Link()
    link.ack(link.offer())
    link.ack(link.offer())
    link.reply(link.offer(), 200)
    link.ack(link.offer())
    assert link.sender.state is LinkState.UNKNOWN
    assert link.offer().baggage is True


@pytest.mark.parametrize("status", [502, 429, 304, 307, 500, 404])
def test_other_statuses_without_ack_say_nothing(status: int) -> None:
    link = Link().aware()
    link.reply(link.offer(), status)
    assert link.sender.state is LinkState.AWARE
    assert link.kind() == "REF"


def test_a_compact_frame_without_ack_is_lost_and_makes_that_path_unknown() -> None:
    link = Link()
    for _ in range(3):
        link.ack(link.offer(path="/a", full=True))
    link.reply(link.offer(path="/b"))
    assert link.lost
    assert link.sender.state is LinkState.MIXED
    assert link.offer(path="/a").compact
    other = link.offer(path="/b")
    assert (other.compact, other.baggage) == (False, True)
    for _ in range(3):
        link.ack(link.offer(path="/b"))
    assert link.offer(path="/b").compact


def test_mixed_ends_after_ten_minutes_without_incident() -> None:
    link = Link().aware()
    link.reply(link.offer(path="/b"))
    link.now = 599
    link.reply(link.offer(path="/c"))
    link.now = 1198
    link.offer()
    assert link.sender.state is LinkState.MIXED
    link.now = 1200
    link.offer()
    assert link.sender.state is LinkState.AWARE


def test_a_refused_base_is_dropped_and_full_is_resent_exactly_once() -> None:
    link = Link().aware()
    assert link.nack(link.offer(), NackReason.UNKNOWN_BASE) is Verdict.RESEND_FULL
    assert link.kind() == "FULL"
    link = Link().aware()
    assert link.nack(link.offer(), NackReason.UNKNOWN_BASE, replayable=False) is Verdict.DONE


def test_a_nack_to_a_full_is_never_resent() -> None:
    link = Link()
    assert link.nack(link.offer(), NackReason.ROOT) is Verdict.DONE
    assert link.sender.state is LinkState.FULL_ONLY


@pytest.mark.parametrize("reason", [NackReason.ROOT, NackReason.LIMIT])
def test_a_nack_on_the_apps_own_response_is_never_resent(reason: NackReason) -> None:
    link = Link().aware()
    assert link.nack(link.offer(), reason, status=200) is Verdict.DONE
    assert link.sender.state is LinkState.FULL_ONLY
    assert link.lost


def test_the_second_nack_within_twenty_compact_frames_is_a_penalty() -> None:
    link = Link().aware()
    link.nack(link.offer(), NackReason.UNKNOWN_BASE)
    link.ack(link.offer(full=True))
    assert link.sender.state is LinkState.AWARE
    link.nack(link.offer(), NackReason.UNKNOWN_BASE)
    assert link.sender.state is LinkState.FULL_ONLY
    assert link.kind() == "FULL"
    link.now = 600
    link.offer()
    assert link.sender.state is LinkState.UNKNOWN


def test_two_nacks_far_apart_are_none() -> None:
    link = Link().aware()
    link.nack(link.offer(), NackReason.UNKNOWN_BASE)
    link.ack(link.offer(full=True))
    for _ in range(25):
        link.ack(link.offer())
    link.nack(link.offer(), NackReason.UNKNOWN_BASE)
    assert link.sender.state is LinkState.AWARE


def test_the_nacks_that_follow_one_restart_count_once() -> None:
    link = Link().aware()
    offers = [link.offer() for _ in range(6)]
    for offer in offers:
        link.nack(offer, NackReason.UNKNOWN_BASE, boot=2)
    assert link.sender.state is LinkState.AWARE


def test_a_412_without_ack_is_repeated_only_where_that_is_safe() -> None:
    link = Link().aware()
    assert link.reply(link.offer(), 412) is Verdict.DONE
    link = Link().aware()
    assert link.reply(link.offer(), 412, idempotent=True) is Verdict.RESEND_FULL
    link = Link()
    assert link.reply(link.offer(), 412, idempotent=True) is Verdict.DONE  # a FULL: this 412 is the application's


@pytest.mark.parametrize("status", [431, 494])
def test_a_header_that_is_too_large_is_left_out_for_ten_minutes(status: int) -> None:
    link = Link()
    assert link.reply(link.offer(), status) is Verdict.RESEND_PLAIN
    offer = link.offer()
    assert (offer.frame, offer.baggage) == (None, True)
    link.now = 600
    assert link.kind() == "FULL"
    assert link.reply(link.offer(), status, replayable=False) is Verdict.DONE


@pytest.mark.parametrize("status", [431, 494])
def test_baggage_that_is_too_large_as_well_is_left_out_until_the_ten_minutes_end(status: int) -> None:
    link = Link()
    link.reply(link.offer(), status)
    early = link.offer()
    assert link.reply(early, status) is Verdict.RESEND_PLAIN
    assert (link.offer().frame, link.offer().baggage) == (None, False)
    assert link.reply(link.offer(), status) is Verdict.DONE, "nothing of ours was in it"
    link.now = 600
    assert (link.kind(), link.offer().baggage) == ("FULL", True)
    assert link.reply(early, status, replayable=False) is Verdict.DONE
    assert link.offer().baggage, "what began before the state changed does not count"


def test_baggage_that_is_too_large_where_no_frame_is_ever_sent_is_left_out_for_ten_minutes() -> None:
    link = Link(w3c_only=True)
    assert link.reply(link.offer(), 431) is Verdict.RESEND_PLAIN
    assert not link.offer().baggage
    link.now = 599.0
    assert not link.offer().baggage
    link.now = 600.0
    assert (link.offer().baggage, link.kind()) == (True, None)


def test_a_full_frame_without_ack_is_not_lost() -> None:
    """Its public keys were in the baggage, or the origin is not known to read anything: nothing was relied upon."""
    link = Link()
    link.reply(link.offer(), 200)
    assert link.lost is False
    link.aware()
    link.reply(link.offer(path="/other", full=True), 200)
    assert link.lost is False


def test_an_ack_of_another_exchange_is_as_good_as_none() -> None:
    link = Link()
    for _ in range(5):
        link.reply(link.offer(A), 200, Ack(AckKind.ACK, B.root[:8], Held.PROCESS, 1))
    assert link.sender.state is LinkState.UNKNOWN


def test_a_restart_drops_what_only_the_old_process_held() -> None:
    link = Link().aware()
    link.ack(link.offer(B, full=True), boot=2)
    assert link.kind(A) == "DELTA"  # against B, which the new process holds
    link.ack(link.offer(EMPTY.put("session.id", "other"), full=True), boot=3)
    assert link.kind(A) == "FULL"


def test_a_balancer_leaves_only_shared_bases() -> None:
    link = Link().aware(boot=1)
    for boot in (2, 3):
        link.now += 1
        link.ack(link.offer(full=True), boot=boot)
    assert link.kind() == "FULL"
    link.ack(link.offer(full=True), boot=3, held=Held.SHARED)
    assert link.kind() == "REF"
    link.now += 601
    link.ack(link.offer(full=True), boot=3)
    assert link.kind() == "REF"


def test_returning_to_an_older_process_is_a_balancer_but_a_late_reply_is_not() -> None:
    link = Link().aware(boot=1)
    late = link.offer(full=True)
    link.now = 1
    link.ack(link.offer(full=True), boot=2)
    link.ack(late, boot=1)  # begun before the second process was known: it has nothing to say
    link.now = 2
    assert link.kind() == "REF"
    link.ack(link.offer(), boot=2)
    assert link.kind() == "REF"
    link.now = 3
    link.ack(link.offer(full=True), boot=1)
    assert link.kind() == "FULL"  # begun after the second had answered, answered by the first: two processes


def test_a_base_expires_a_minute_after_its_last_ack() -> None:
    link = Link().aware()
    link.now = 59.9
    assert link.kind() == "REF"
    link.now = 60
    assert link.kind() == "FULL"


def test_get_is_full_until_its_path_has_acked_one() -> None:
    link = Link().aware()
    assert link.kind(safe=True) == "REF"  # "/" has acked
    offer = link.offer(path="/cached", safe=True)
    assert not offer.compact
    link.reply(offer, 200, safe=True)  # no ack on cacheable responses: no evidence
    assert link.sender.state is LinkState.AWARE


def test_a_reply_begun_before_the_last_transition_updates_bases_and_not_the_state() -> None:
    link = Link().aware()
    old = link.offer(full=True)
    link.reply(link.offer(path="/b"))
    link.now = 600
    link.offer()
    assert link.sender.state is LinkState.AWARE
    link.reply(old, 200)
    assert link.sender.state is LinkState.AWARE


@pytest.mark.parametrize(
    ("mode", "unknown", "aware"), [("until_ack", True, False), ("always", True, True), ("never", False, False)]
)
def test_baggage_modes(mode: str, unknown: bool, aware: bool) -> None:
    assert Link(baggage=mode).offer().baggage is unknown
    assert Link(baggage=mode).aware().offer().baggage is aware


def test_by_configuration_no_frame_is_ever_sent() -> None:
    link = Link(w3c_only=True)
    link.now = 1e9
    assert link.offer().frame is None
    assert link.reply(link.offer(), 412) is Verdict.DONE


def test_without_context_or_session_there_is_nothing_to_refer_to() -> None:
    link = Link().aware()
    assert link.offer(EMPTY).frame is None
    assert link.kind(EMPTY.put("user.tier", "gold")) == "FULL"


def test_every_state_says_what_it_sends() -> None:
    assert set(SENDS) == set(LinkState)


@given(st.lists(st.tuples(st.sampled_from(["send", "restart", "strip"]), st.integers(0, 5)), max_size=40))
def test_a_receiver_sees_its_senders_state_or_is_told_that_it_does_not(steps: list[tuple[str, int]]) -> None:
    """A sender and a worker that restarts, behind something that strips acks: never silently another state."""
    link, worker = Link(), Receiver(BaseCache(Limits()))
    boot = 1
    for action, tier in steps:
        link.now += 1
        if action == "restart":
            worker, boot = Receiver(BaseCache(Limits())), boot + 1
        state = A.put("limit.tokens.total", tier)
        offer = link.offer(state)
        for attempt in range(2):
            assert offer.frame is not None
            line = to_header(encode_frame(offer.frame))
            outcome = worker.open([line], client="c", trusted=True, verify=lambda b, m: None)
            if isinstance(outcome, NeedBase):
                outcome = worker.give_up(outcome)
            if isinstance(outcome, Accepted):
                assert outcome.state.root == state.root
                ack = Ack(AckKind.ACK, state.root[:8], outcome.held, boot)
                assert link.reply(offer, 200, None if action == "strip" else ack) is Verdict.DONE
                break
            assert attempt == 0, "a FULL is always understood"
            ack = Ack(AckKind.NACK, state.root[:8], boot_id=boot, reason=NackReason.UNKNOWN_BASE)
            assert link.reply(offer, 412, ack) is Verdict.RESEND_FULL
            offer = link.offer(state, full=True)
