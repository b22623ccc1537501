"""Where a conversation without a session is cut: a function of its length alone, and seldom another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otelctx.inference.cut import cut, fewest, quota

EXCHANGES = st.lists(st.integers(1, 60), min_size=1, max_size=120)


@given(total=st.integers(0, 5000), window=st.integers(32, 1000), data=st.data())
def test_the_quota_is_the_smallest_multiple_of_a_quarter_that_is_enough(
    total: int, window: int, data: st.DataObject
) -> None:
    reserve = data.draw(st.integers(0, window // 4))
    gone, step = quota(total, window=window, reserve=reserve), window // 4
    assert gone % step == 0
    assert total - gone + reserve <= window
    assert gone == 0 or total - (gone - step) + reserve > window


@given(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=40), limit=st.integers(-5, 110))
def test_the_fewest_are_found_by_asking_seldom(sizes: list[int], limit: int) -> None:
    falling, asked = sorted(sizes, reverse=True), []

    def size(count: int) -> int:
        asked.append(count)
        return falling[count - 1]

    enough = [n for n, tokens in enumerate(falling, 1) if tokens <= limit]
    assert fewest(size, limit, len(falling)) == (enough[0] if enough else len(falling))
    assert len(asked) <= len(falling).bit_length()


@given(turns=EXCHANGES, head=st.integers(0, 100), new=st.integers(1, 200), window=st.integers(256, 600))
def test_head_and_newest_exchange_stay_and_the_rest_fits_if_it_can(
    turns: list[int], head: int, new: int, window: int
) -> None:
    reserve = window // 4
    count = cut(window=window, head=head, turns=turns, new=new, reserve=reserve)
    kept = head + sum(turns[count:]) + new
    assert 0 <= count <= len(turns)
    assert kept + reserve <= window or count == len(turns)
    total = head + sum(turns) + new
    if total + reserve <= window:
        assert count == 0
    if count > 0:
        # Not one exchange more than the quota wants.
        assert sum(turns[: count - 1]) < quota(total, window=window, reserve=reserve)


@given(turns=EXCHANGES, head=st.integers(0, 60), window=st.integers(512, 700), reserve=st.integers(1, 128))
def test_the_cut_moves_at_most_once_for_a_quarter_of_growth(
    turns: list[int], head: int, window: int, reserve: int
) -> None:
    """Turn by turn, as a client sends its growing history: between two moves of the cut lie ``window/4`` tokens."""
    moves, last = [], 0
    for count in range(len(turns)):
        total = head + sum(turns[: count + 1])
        now = cut(window=window, head=head, turns=turns[:count], new=turns[count], reserve=reserve)
        assert now >= last
        if now != last:
            moves.append(total)
            last = now
    # One turn may step over several quarters; then it takes the rest of the last of them with it.
    quarters = [(total + reserve - window + window // 4 - 1) // (window // 4) for total in moves]
    assert quarters == sorted(set(quarters))
