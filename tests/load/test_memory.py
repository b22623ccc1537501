"""The slope of a process's memory: what leaks is seen, what comes and goes is not."""

from __future__ import annotations

import random

import pytest

from scripts.soak.memory import growth, lower_edge


def samples(seconds: int, per_minute: float, seed: int) -> list[tuple[float, float]]:
    """One a second from 800 MiB on: noise, and peaks of up to 30 MiB in a tenth of the time."""
    rng = random.Random(seed)
    peaks = (rng.uniform(0, 30) if rng.random() < 0.1 else 0.0 for _ in range(seconds))
    return [(float(t), 800 + per_minute * t / 60 + rng.uniform(0, 2) + peak) for t, peak in enumerate(peaks)]


@pytest.mark.parametrize("seconds", [135, 1800])
@pytest.mark.parametrize("seed", range(5))
def test_a_leak_of_five_mib_a_minute_is_seen_and_peaks_are_not(seconds: int, seed: int) -> None:
    assert growth(samples(seconds, 0.0, seed), warm_up=seconds / 3).low < 1
    leak = growth(samples(seconds, 5.0, seed), warm_up=seconds / 3)
    assert leak.low > 1
    assert leak.low <= leak.slope <= leak.high


@pytest.mark.parametrize("seed", range(5))
def test_half_an_hour_tells_much_smaller_leaks(seed: int) -> None:
    assert growth(samples(1800, 1.2, seed), warm_up=300).low > 1
    assert growth(samples(1800, 0.5, seed), warm_up=300).high < 1


def test_a_quarter_of_the_samples_may_be_anything() -> None:
    """Whole buckets, as when the collector is away for long."""
    steady = [(float(t), 1e6 if (t // 15) % 4 == 3 else 800.0) for t in range(300)]
    assert growth(steady, warm_up=0).slope == 0


def test_the_warm_up_does_not_count() -> None:
    filling = [(float(t), 800.0 + 10 * min(t, 60)) for t in range(180)]
    assert growth(filling, warm_up=60).slope == 0
    assert growth(filling, warm_up=0).high > 100


def test_the_lower_edge_has_the_smallest_sample_of_each_bucket() -> None:
    assert lower_edge([(0, 5.0), (1, 3.0), (2, 4.0), (3, 9.0), (4, 8.0)], 2) == [(1, 3.0), (2, 4.0)]
    assert lower_edge([], 3) == []


def test_too_few_samples_are_no_answer() -> None:
    with pytest.raises(ValueError, match="too few"):
        growth([(0.0, 1.0), (1.0, 1.0)], warm_up=0)
