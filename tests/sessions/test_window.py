from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from otelctx.errors import StaleView, VersionConflict
from otelctx.sessions.arena import Arena, pages_for
from otelctx.sessions.window import TokenWindow

LIMIT = 400


def filled(arena: Arena, n: int) -> TokenWindow:
    window = TokenWindow(arena, 1000)
    tx = window.begin()
    window.mark_turn(tx)
    window.append(tx, range(1, n + 1))
    window.commit(tx)
    return window


def test_a_view_is_zero_copy_read_only_and_stale_after_its_block() -> None:
    arena = Arena(4)
    window = filled(arena, 100)
    with window.view() as view:
        parts = list(view)
        assert [len(p) for p in parts] == [64, 36]
        assert len(view) == 100
        assert np.shares_memory(parts[0], arena.page(window._pages[0]))
        with pytest.raises(ValueError, match="read-only"):
            parts[0][0] = 7
        iterator = iter(view)
        next(iterator)
    for use in (lambda: list(view), lambda: len(view), lambda: next(iterator)):
        with pytest.raises(StaleView):
            use()


def test_a_view_shows_nothing_before_its_block() -> None:
    with pytest.raises(StaleView):
        list(filled(Arena(4), 10).view())


def test_pages_are_not_reused_while_a_view_of_them_is_open() -> None:
    arena = Arena(2)
    window = filled(arena, 128)
    with window.view() as view:
        window.release()
        assert arena.free_pages == 0
        assert [int(part[0]) for part in view] == [1, 65]
    assert arena.free_pages == 2


def test_evicted_pages_are_held_until_the_commit() -> None:
    arena = Arena(4)
    window = filled(arena, 200)
    tx = window.begin()
    window.evict_turns(tx, 1)
    assert arena.free_pages == 0
    window.commit(tx)
    assert arena.free_pages == 3  # the one that the tail is on stays


def test_what_an_answer_without_an_end_evicts_of_itself_is_free_at_once() -> None:
    arena = Arena(5)
    window = TokenWindow(arena, 200)
    tx = window.begin()
    window.append(tx, range(1, 101))
    window.pin(tx, 10)
    for n in range(50):
        window.append(tx, range(n * 64, n * 64 + 64))
        window.evict_tokens(tx, 64)
    assert (window.kept, window.evicted) == (100, 50 * 64)
    window.rollback(tx)
    assert arena.used_pages == 0


@pytest.mark.parametrize(
    ("n", "turns", "marks"),
    [
        (0, [10, 20, 30], (5, 15, 35)),
        (4, [6, 20, 30], (9, 15, 35)),
        (10, [20, 30], (15, 35)),
        (29, [1, 30], (34, 35)),
        (59, [1], (64,)),
        (60, [], ()),
        (99, [], ()),
    ],
)
def test_an_exchange_that_is_cut_starts_at_the_head_and_one_that_is_gone_is_none(
    n: int, turns: list[int], marks: tuple[int, ...]
) -> None:
    window = TokenWindow(Arena(4), LIMIT)
    tx = window.begin()
    window.append(tx, range(5))
    window.pin(tx, 5)
    for length in (10, 20, 30):
        window.mark_turn(tx)
        window.append(tx, range(length))
    assert window.evict_tokens(tx, n) == min(n, 60)
    assert (window.turns, window.marks) == (turns, marks)


def test_what_is_rendered_anew_shares_the_pages_that_it_begins_with() -> None:
    arena = Arena(6)
    window = filled(arena, 200)
    shared = [window._pages[n] for n in range(2)]
    tx = window.begin()
    window.replace(tx, [*range(1, 151), 7, 8, 9], pinned=20)
    assert [window._pages[n] for n in range(2)] == shared
    assert (arena.used_pages, window.pinned, window.turns) == (5, 20, [133])  # one page more until it is settled
    window.commit(tx)
    assert arena.used_pages == 3
    assert window.tokens().tolist() == [*range(1, 151), 7, 8, 9]


def test_rendered_anew_and_taken_back_it_is_as_before_bit_for_bit() -> None:
    arena = Arena(8)
    window = filled(arena, 200)
    slab, pages = arena._slab.copy(), dict(window._pages)
    tx = window.begin()
    window.replace(tx, range(500, 620), evicted=30, pinned=50)
    window.append(tx, range(100))
    window.evict_tokens(tx, 80)
    window.rollback(tx)
    assert np.array_equal(arena._slab, slab)
    assert (window._pages, window.turns, window.pinned, window.evicted) == (pages, [200], 0, 0)


@pytest.mark.parametrize(("evicted", "pinned"), [(-1, 0), (0, -1), (0, 4)])
def test_what_can_not_be_evicted_or_pinned_is_refused(evicted: int, pinned: int) -> None:
    window = filled(Arena(4), 10)
    tx = window.begin()
    with pytest.raises(ValueError, match="can't be pinned"):
        window.replace(tx, [1, 2, 3], evicted=evicted, pinned=pinned)
    with pytest.raises(ValueError, match="can't be evicted"):
        window.evict_tokens(tx, -1)
    assert window.tokens().tolist() == list(range(1, 11))


def test_a_rollback_leaves_nothing_of_the_turn_in_the_slab() -> None:
    arena = Arena(4)
    window = filled(arena, 10)
    before = arena._slab.copy()
    tx = window.begin()
    window.append(tx, range(1000, 1200))
    window.rollback(tx)
    assert np.array_equal(arena._slab, before)


def test_a_second_begin_makes_the_first_transaction_stale() -> None:
    window = filled(Arena(4), 10)
    first = window.begin()
    window.append(first, [1, 2])
    second = window.begin()
    assert window.tail == 10
    with pytest.raises(VersionConflict):
        window.commit(first)
    window.rollback(first)  # over already: nothing happens to the second
    window.append(second, [3])
    window.commit(second)
    assert window.tokens()[-1] == 3


def test_a_voided_transaction_ends_with_the_next_begin() -> None:
    window = filled(Arena(4), 10)
    late = window.begin()
    window.append(late, [1, 2])
    window.void()
    with pytest.raises(VersionConflict):
        window.append(late, [3])
    tx = window.begin()
    assert (window.tail, window.version) == (10, 1)
    window.rollback(late)
    window.append(tx, [4])
    assert window.commit(tx) == 2


def test_a_released_window_is_over() -> None:
    arena = Arena(4)
    window = filled(arena, 100)
    tx = window.begin()
    window.append(tx, [1])
    window.release()
    window.release()
    assert arena.used_pages == 0
    for act in (window.begin, lambda: window.append(tx, [1]), lambda: window.commit(tx)):
        with pytest.raises(VersionConflict):
            act()
    with pytest.raises(StaleView):
        window.tokens()
    window.rollback(tx)
    assert (window.kept, arena.used_pages) == (0, 0)


def test_a_window_is_pinned_once_and_before_its_first_exchange() -> None:
    window = filled(Arena(4), 10)
    tx = window.begin()
    with pytest.raises(ValueError, match="pinned once"):
        window.pin(tx, 2)


@pytest.mark.parametrize("n", [-1, 4])
def test_only_tokens_that_are_there_are_pinned(n: int) -> None:
    window = TokenWindow(Arena(4), LIMIT)
    tx = window.begin()
    window.append(tx, [1, 2, 3])
    with pytest.raises(ValueError, match="tokens it has"):
        window.pin(tx, n)


@pytest.mark.parametrize("count", [-1, 2])
def test_only_exchanges_that_are_there_are_evicted(count: int) -> None:
    window = filled(Arena(4), 10)
    with pytest.raises(ValueError, match="exchanges of 1"):
        window.evict_turns(window.begin(), count)


@pytest.mark.parametrize(
    ("ids", "error"),
    [([2**31], OverflowError), (np.array([2**31]), TypeError), (np.array([1.0]), TypeError)],
    ids=["list", "int64", "float"],
)
def test_ids_are_never_cut_to_32_bits_silently(ids: Any, error: type[Exception]) -> None:
    window = filled(Arena(4), 10)
    tx = window.begin()
    with pytest.raises(error):
        window.append(tx, ids)
    assert window.tail == 10


def test_a_copy_of_the_tokens_is_the_readers_own() -> None:
    window = filled(Arena(4), 10)
    copied = window.tokens()
    copied[:] = 0
    assert window.tokens().tolist() == list(range(1, 11))


def calls(act: Callable[[], object]) -> int:
    """How many functions are called, Python's and C's."""
    counted = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return counted


def test_appending_and_reading_are_done_by_pages_and_not_by_tokens() -> None:
    """4096 tokens in and out take far fewer steps than one for each would."""
    ids = np.arange(1, 4097, dtype=np.int32)
    window = TokenWindow(Arena(2 * pages_for(4096)), 4096)

    def by_pages() -> None:
        tx = window.begin()
        window.append(tx, ids)
        window.tokens()
        window.rollback(tx)

    assert calls(by_pages) < len(ids) / 4
