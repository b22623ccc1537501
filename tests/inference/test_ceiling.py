"""How much a forward is given after a lack of memory, and for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otelctx.inference.ceiling import STEADY, Ceiling

COUNTS = st.lists(st.integers(1, 600), min_size=1, max_size=12)


def test_without_a_failure_there_is_no_limit() -> None:
    ceiling = Ceiling()
    ceiling.passed()
    assert (ceiling.limit, ceiling.parts([512, 1])) == (None, [[512, 1]])


@given(counts=COUNTS, tried=st.integers(1, 2000))
def test_each_item_is_fed_in_one_forward_that_is_not_too_long(counts: list[int], tried: int) -> None:
    ceiling = Ceiling()
    ceiling.failed(tried)
    limit = ceiling.limit
    assert limit == max(1, tried // 2)
    parts = ceiling.parts(counts)
    assert all(0 < sum(part) <= limit for part in parts)
    assert [count for part in parts for count in part] == [min(count, limit) for count in counts]


def test_forwards_are_filled() -> None:
    """Decoding rows share a forward as far as it goes."""
    ceiling = Ceiling()
    ceiling.failed(8)
    assert ceiling.parts([1] * 6 + [100]) == [[1] * 4, [1, 1], [4]]


def test_the_limit_falls_by_halves_and_comes_back() -> None:
    ceiling = Ceiling()
    for tried in (512, 256, 128):
        ceiling.failed(tried)
    seen = []
    for _ in range(4 * STEADY):
        ceiling.passed()
        seen.append(ceiling.limit)
    assert seen == [64] * (STEADY - 1) + [128] * STEADY + [256] * STEADY + [512] * STEADY + [None]


def test_a_failure_starts_the_count_anew() -> None:
    ceiling = Ceiling()
    ceiling.failed(64)
    for _ in range(STEADY - 1):
        ceiling.passed()
    ceiling.failed(8)
    for _ in range(STEADY - 1):
        ceiling.passed()
    assert ceiling.limit == 4
