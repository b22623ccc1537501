"""Ten thousand hostile frames reach each of the receiver's checks: none raises, and none costs more than it may."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from statistics import median
from time import thread_time

import pytest

from benchmarks.fuzz.frames import ACCEPTED, CHECKS, KNOWN, MAKERS, Lines, Target, header, signed
from otelctx.delta.codec import encode_frame
from otelctx.delta.messages import FrameKind, ref
from otelctx.delta.receiver import Accepted, Ignored, Refuse

INPUTS = 10_000
BATCH = 500
RATIO = 20  # times the CPU time of an accepted REF
MEMORY = 2**20  # bytes
REF = signed(encode_frame(ref(KNOWN[0])))
ORDER = {check: at for at, check in enumerate((*CHECKS, ACCEPTED))}


def seconds(target: Target, lines: Lines) -> float:
    """CPU time of this thread."""
    began = thread_time()
    target.open(lines)
    return thread_time() - began


def ratio(target: Target, lines: Lines) -> float:
    """Through that of an accepted REF: medians of many, taken in turns, since other processes share the machine."""
    taken, unit = [], []
    for _ in range(21):
        unit.append(seconds(target, REF))
        taken.append(seconds(target, lines))
    return median(taken) / median(unit)


def fuzz(check: str, inputs: int, seed: int) -> tuple[Counter[str], float, int]:
    """Where the inputs that reach ``check`` ended, the largest ratio of CPU time, and the largest use of memory."""
    rng = random.Random(seed)
    ended: Counter[str] = Counter()
    worst, most = 0.0, 0
    while ended.total() < inputs:
        target = Target()  # anew, as what is accepted makes further bases known
        batch = [MAKERS[check](rng) for _ in range(BATCH)]
        unit = median(seconds(target, REF) for _ in range(50))
        for lines in batch:
            began = thread_time()
            outcome = target.open(lines)
            taken = thread_time() - began
            if taken > worst * unit:
                worst = max(worst, ratio(target, lines))
            if isinstance(outcome, Refuse):
                assert outcome.kind is not FrameKind.FULL
            end = target.check(lines, outcome)
            if ORDER[end] >= ORDER[check]:
                ended[end] += 1
        most = max(most, memory(target, batch[::5]))
    return ended, worst, most


def memory(target: Target, batch: list[Lines]) -> int:
    """The largest number of bytes that reading one of them has taken at any moment."""
    most = 0
    tracemalloc.start()
    for lines in batch:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        target.open(lines)
        most = max(most, tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    return most


@pytest.mark.parametrize("check", CHECKS)
def test_ten_thousand_frames_reach_the_check_and_none_costs_more_than_it_may(check: str) -> None:
    ended, worst, most = fuzz(check, INPUTS, seed=20240229)
    assert ended.total() >= INPUTS
    assert ended[check] >= INPUTS / 20  # and so many do not pass it
    assert worst <= RATIO
    assert most <= MEMORY


def test_the_checks_are_the_receivers_and_in_its_order() -> None:
    """A frame with two faults is refused for the one that is looked at first."""
    target, rng = Target(), random.Random(1)
    assert tuple(MAKERS) == CHECKS
    good = signed(encode_frame(ref(KNOWN[0])))
    outcome = target.open(good)
    assert (isinstance(outcome, Accepted), target.check(good, outcome)) == (True, ACCEPTED)
    for first in CHECKS[1:]:
        twice = [*MAKERS[first](rng), b"::"]
        assert target.check(twice, target.open(twice)) == "one line"
    long = [b"!" * 5000]
    assert (target.open(long), target.check(long, target.open(long))) == (Ignored("oversized", 5000), "length")
    unsigned = [header(b"\xff" * 3000)]  # no message at all, and nobody's
    assert target.check(unsigned, target.open(unsigned)) == "mac"


@pytest.mark.parametrize("field", [b"\x08\x00", b"\x42\x00", b"\x0d\x00\x00\x00\x00", b"\x88\x80\x80\x80\x00\x00"])
def test_a_stranger_can_not_make_us_walk_through_thousands_of_fields(field: bytes) -> None:
    """To find out whether a frame ends in a MAC its fields are walked, before it is known whose they are."""
    target = Target()
    lines = [header(field * (3000 // len(field)) + b"\x7a\x11" + bytes(17))]
    assert isinstance(target.open(lines), Ignored)
    assert ratio(target, lines) <= RATIO
