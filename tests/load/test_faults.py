"""When things go wrong is known from the seed, and all of them do."""

from __future__ import annotations

from collections import Counter

from scripts.soak.backstage import outages
from scripts.soak.faults import EVERY, Schedule


def faults(seed: int, seconds: int = 600) -> list[str | None]:
    schedule = Schedule(seed)
    return [schedule.due(step / 20) for step in range(seconds * 20)]


def test_the_same_seed_gives_the_same_faults() -> None:
    assert faults(3) == faults(3) != faults(4)


def test_each_kind_comes_about_as_often_as_it_is_meant_to() -> None:
    counts = Counter(kind for kind in faults(3) if kind is not None)
    for kind, every in EVERY.items():
        assert 0.5 < counts[kind] * every / 600 < 1.5


def test_no_fault_is_due_twice() -> None:
    schedule = Schedule(1, {"slow": 1.0})
    late = 1000.0
    assert schedule.due(late) == "slow"
    assert schedule.due(late) is None


def test_outages_are_apart_and_leave_time_to_recover() -> None:
    for seconds in (24.0, 135.0, 1800.0):
        planned = outages(seconds, 1)
        assert {"restart", "swallow"} <= {outage.kind for outage in planned}
        ends = [outage.at + outage.seconds for outage in planned]
        assert all(end < after.at for end, after in zip(ends, planned[1:], strict=False))
        assert ends[-1] < 0.9 * seconds
    assert outages(135.0, 1) == outages(135.0, 1) != outages(135.0, 2)
