"""The percentile, against all the numbers kept."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from otelctx.inference.quantile import Tail

EXACT = (0.8, 1.0, 1.2, 1.5, 1.6, 2.0)
numbers = st.lists(st.one_of(st.sampled_from(EXACT), st.floats(0, 100)), max_size=400)


def nearest_rank(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.99 * len(values) - 1e-9) - 1] if values else 0.0


@given(numbers, numbers)
def test_it_is_never_too_high_at_most_one_bucket_too_low_and_exact_at_the_bounds(
    kept: list[float], more: list[float]
) -> None:
    tail = Tail(EXACT)
    for value in kept:
        tail.add(value)
    true, found = nearest_rank(kept + more), tail.p99(more)
    assert found <= true
    if 1 / 64 <= true < 64:
        assert true < found * 2 ** (1 / 16) * (1 + 1e-9)
    for bound in EXACT:
        assert (found >= bound) is (true >= bound)
    assert tail.count == len(kept)  # what was only asked about was not kept


def test_one_in_a_hundred_may_be_slow_and_two_may_not() -> None:
    tail = Tail()
    for _ in range(99):
        tail.add(0.5)
    tail.add(50)
    assert tail.p99() == 0.5
    assert tail.p99([50]) > 40


def test_below_a_hundred_it_is_the_greatest_and_after_clearing_nothing_is_left() -> None:
    tail = Tail([7.0])
    for value in (7.0, *[0.1] * 98):
        tail.add(value)
    assert tail.p99() == 7.0
    tail.clear()
    assert (tail.p99(), tail.count) == (0.0, 0)
