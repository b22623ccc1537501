"""Senders and workers in one process, signed frames between them, and everything a network does to both."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.state import EMPTY, State
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import decode_ack, encode_ack, encode_frame, from_header, split_mac, to_header
from otelctx.delta.limits import Limits
from otelctx.delta.messages import Ack, AckKind, Frame, FrameKind
from otelctx.delta.receiver import Accepted, NeedBase, Outcome, Receiver, Refuse, Run
from otelctx.delta.sender import LinkState, Offer, Reply, Sender, Verdict
from otelctx.policy.trust import ACK, FRAME, Keyring

KEYS = Keyring.parse("1:QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVoxMjM0NTY=")
EPOCH = 1_800_000_000.0
FULL, DELTA, REF = FrameKind
BIG = EMPTY.put("tenant.id", "acme").put("user.id", "u-1234567890").put("prompt.version", "v3.1.0")


def state(session: int, tier: int) -> State:
    return BIG.put("session.id", f"s{session}").put("limit.tokens.total", tier)


class Worker:
    """A process that reads frames and answers with signed acks."""

    def __init__(self, boot_id: int) -> None:
        self.boot_id = boot_id
        self.receiver = Receiver(BaseCache(Limits()))

    def read(self, line: str, now: float) -> Outcome:
        outcome = self.receiver.open(
            [line], client="c", trusted=False, verify=lambda body, mac: KEYS.verify(FRAME, body, mac, now)
        )
        return self.receiver.give_up(outcome) if isinstance(outcome, NeedBase) else outcome

    def answer(self, outcome: Outcome, now: float) -> str | None:
        if isinstance(outcome, Accepted):
            ack = Ack(AckKind.ACK, outcome.state.root[:8], outcome.held, self.boot_id)
        elif isinstance(outcome, Refuse | Run):
            ack = Ack(AckKind.NACK, outcome.root[:8], boot_id=self.boot_id, reason=outcome.reason)
        else:
            return None
        body = encode_ack(ack, signed=True)
        return to_header(body + KEYS.sign(ACK, body, now))


@dataclass
class Held:
    """An exchange whose reply is still under way."""

    sender: Sender
    offer: Offer
    status: int
    line: str | None


class World:
    """What the senders' applications meant is what the workers' applications see, or those are told otherwise."""

    def __init__(self, workers: int = 3, senders: int = 2) -> None:
        self.now = 0.0
        self.boots = 0
        self.workers = [self.start() for _ in range(workers)]
        self.senders = [Sender(Limits()) for _ in range(senders)]
        self.held: list[Held] = []
        self.kinds: list[FrameKind | None] = []
        self.resyncs = 0

    def start(self) -> Worker:
        self.boots += 1
        return Worker(self.boots)

    def call(self, sender: int, what: State, worker: int = 0, fate: str = "ok", path: str = "/") -> None:
        self.now += 1
        link = self.senders[sender]
        offer = link.offer(what, path=path, safe=False, must_be_full=False, now=self.now)
        self.kinds.append(None if offer.frame is None else offer.frame.kind)
        if self.exchange(link, offer, worker, fate) is Verdict.RESEND_FULL:
            self.resyncs += 1
            self.now += 1
            again = link.offer(what, path=path, safe=False, must_be_full=True, now=self.now)
            assert again.frame is None or again.frame.kind is FULL
            assert self.exchange(link, again, worker, "ok") is Verdict.DONE, "at most one resend"

    def exchange(self, link: Sender, offer: Offer, worker: int, fate: str) -> Verdict:
        if fate == "request lost":
            link.failed(offer)
            return Verdict.DONE
        status, line = 200, None
        if offer.frame is not None and fate != "unaware":
            for _ in range(2 if fate == "duplicated" else 1):
                status, line = self.deliver(offer.frame, offer.state, self.workers[worker])
        if fate == "reply lost":
            link.failed(offer)
            return Verdict.DONE
        if fate == "reply late":
            self.held.append(Held(link, offer, status, line))
            return Verdict.DONE
        if fate == "stripped":
            line = None
        if fate == "502":
            status, line = 502, None
        return self.close(link, offer, status, line)

    def deliver(self, frame: Frame, meant: State, worker: Worker) -> tuple[int, str | None]:
        body = encode_frame(frame)
        line = to_header(body + KEYS.sign(FRAME, body, EPOCH + self.now))
        outcome = worker.read(line, EPOCH + self.now)
        if isinstance(outcome, Accepted):
            assert outcome.state.root == meant.root
            assert [e.leaf for e in outcome.state.entries()] == [e.leaf for e in meant.entries()]
        else:
            assert isinstance(outcome, Refuse), outcome
            assert frame.kind is not FULL
        return (412 if isinstance(outcome, Refuse) else 200), worker.answer(outcome, EPOCH + self.now)

    def close(self, link: Sender, offer: Offer, status: int, line: str | None) -> Verdict:
        ack = None
        if line is not None:
            body, mac = split_mac(from_header(line))
            assert mac is not None
            assert KEYS.verify(ACK, body, mac, EPOCH + self.now) == "default"
            ack = decode_ack(body)
        return link.close(offer, Reply(status, ack, True, False, False), self.now)[0]


def test_three_fulls_and_then_a_word_or_two() -> None:
    world = World()
    for tier in (1, 1, 1, 1, 1, 2, 2, 1):
        world.call(0, state(0, tier))
    assert world.kinds == [FULL, FULL, FULL, REF, REF, DELTA, REF, REF]


def test_a_second_session_on_a_known_link_is_full_once() -> None:
    world = World()
    for session in (0, 0, 0, 1, 1, 0, 1):
        world.call(0, state(session, 1))
    assert world.kinds == [FULL, FULL, FULL, FULL, REF, REF, REF]


def test_a_second_sender_reads_nothing_out_of_the_first_ones_bases() -> None:
    world = World()
    for _ in range(4):
        world.call(0, state(0, 1))
    world.call(1, state(0, 1))
    assert world.kinds[-1] is FULL


def test_after_a_restart_one_refusal_and_one_full() -> None:
    world = World()
    for _ in range(4):
        world.call(0, state(0, 1))
    world.workers[0] = world.start()
    for _ in range(3):
        world.call(0, state(0, 1))
    assert world.kinds == [FULL, FULL, FULL, REF, REF, REF, REF]
    assert world.resyncs == 1


@pytest.mark.parametrize("proceed", [False, True])
def test_a_base_that_the_worker_dropped_is_asked_for_again_or_done_without(proceed: bool) -> None:
    worker = Worker(1)
    if proceed:
        worker.receiver = Receiver(BaseCache(Limits()), on_unknown_base="proceed")
    link = Sender(Limits())
    for at in range(4):
        offer = link.offer(state(0, 0), path="/", safe=False, must_be_full=False, now=float(at))
        assert offer.frame is not None
        if at == 3:
            worker.receiver._bases.clear()
        outcome = worker.read(
            to_header(encode_frame(offer.frame) + KEYS.sign(FRAME, encode_frame(offer.frame), EPOCH)), EPOCH
        )
        status = 412 if isinstance(outcome, Refuse) else 200
        line = worker.answer(outcome, EPOCH)
        assert line is not None
        ack = decode_ack(split_mac(from_header(line))[0])
        verdict, lost = link.close(offer, Reply(status, ack, True, False, False), float(at))
    assert isinstance(outcome, Run if proceed else Refuse)
    assert (verdict, lost) == ((Verdict.DONE, True) if proceed else (Verdict.RESEND_FULL, False))


FATES = ["request lost", "reply lost", "reply late", "duplicated", "stripped", "502", "unaware"]
CALL = st.tuples(
    st.just("call"),
    st.integers(0, 1),  # sender
    st.integers(0, 1),  # session
    st.integers(0, 3),  # tier
    st.sampled_from([0] * 8 + [1, 2]),  # worker
    st.sampled_from(["ok"] * 20 + FATES),
    st.sampled_from(["/", "/", "/other"]),
)
STEP = st.one_of(
    *[CALL] * 6, st.sampled_from([("arrive",), ("restart", 0), ("restart", 1), ("wait", 61.0), ("wait", 601.0)])
)


@given(st.lists(STEP, max_size=60))
def test_never_silently_another_state_and_compact_again_once_the_faults_are_over(
    steps: list[tuple[object, ...]],
) -> None:
    world = World()
    for sender in (0, 1):
        for _ in range(3):
            world.call(sender, state(0, 0))
    for step in steps:
        match step:
            case ("call", int(sender), int(session), int(tier), int(worker), str(fate), str(path)):
                world.call(sender, state(session, tier), worker, fate, path)
            case ("arrive",) if world.held:
                late = world.held.pop(0)
                world.close(late.sender, late.offer, late.status, late.line)
            case ("restart", int(worker)):
                world.workers[worker] = world.start()
            case ("wait", float(seconds)):
                world.now += seconds
            case _:
                pass
    for sender in (0, 1):
        world.call(sender, state(0, 0))
        world.now += 601  # penalties, bases and the memory of a balancer are over
        for _ in range(3):
            world.call(sender, state(0, 0))
        world.kinds.clear()
        world.resyncs = 0
        for tier in (0, 1, 1, 2, 3, 3):
            world.call(sender, state(0, tier))
        assert FULL not in world.kinds
        assert world.resyncs == 0
        assert world.senders[sender].state is LinkState.AWARE
