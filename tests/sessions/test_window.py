from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from otelctx.errors import ArenaExhausted, StaleView, TokenLimitExceeded, VersionConflict
from otelctx.sessions.arena import Arena, pages_for
from otelctx.sessions.window import TokenWindow, Tx, View

LIMIT = 400


@dataclass
class Model:
    """What a window is, in plain lists."""

    pinned: list[int] = field(default_factory=list)
    unmarked: list[int] = field(default_factory=list)
    turns: list[list[int]] = field(default_factory=list)
    evicted: int = 0

    @property
    def exchanges(self) -> list[list[int]]:
        return [self.unmarked, *self.turns] if self.unmarked else self.turns

    @property
    def tokens(self) -> list[int]:
        return self.pinned + self.unmarked + [i for turn in self.turns for i in turn]


class Pair:
    """A window and its model, with what a rollback must bring back."""

    def __init__(self, arena: Arena) -> None:
        self.window = TokenWindow(arena, LIMIT)
        self.model = Model()
        self.saved = Model()
        self.tx: Tx | None = None
        self.version = 0


class WindowsAgainstLists(RuleBasedStateMachine):
    """Two windows of one small arena behave as lists do, whatever is begun, committed, rolled back, voided and read."""

    @initialize(pages=st.integers(6, 20))
    def start(self, pages: int) -> None:
        self.arena = Arena(pages)
        self.pairs = [Pair(self.arena), Pair(self.arena)]
        self.counter = 0
        self.views: list[tuple[View, list[int]]] = []

    def fresh(self, n: int) -> list[int]:
        # Never 0 and never twice, so that a zeroed or a foreign page can't look right.
        self.counter += n
        return list(range(self.counter - n + 1, self.counter + 1))

    def opened(self, which: int) -> tuple[Pair, Tx]:
        pair = self.pairs[which]
        if pair.tx is None:
            pair.saved = copy.deepcopy(pair.model)
            pair.tx = pair.window.begin()
        return pair, pair.tx

    @rule(which=st.integers(0, 1), n=st.integers(0, 200), mark=st.booleans())
    def append(self, which: int, n: int, mark: bool) -> None:
        pair, tx = self.opened(which)
        model, window = pair.model, pair.window
        if mark:
            window.mark_turn(tx)
            if not (model.turns and not model.turns[-1]):
                model.turns.append([])
        ids = self.fresh(n)
        try:
            window.append(tx, ids)
        except TokenLimitExceeded:
            assert len(model.tokens) + n > LIMIT
        except ArenaExhausted:
            assert pages_for(window.tail + n) - pages_for(window.tail) > self.arena.free_pages
        else:
            (model.turns[-1] if model.turns else model.unmarked).extend(ids)

    @rule(which=st.integers(0, 1), share=st.floats(0, 1))
    def pin(self, which: int, share: float) -> None:
        pair, tx = self.opened(which)
        model = pair.model
        n = round(share * pair.window.tail)
        if model.pinned or model.evicted or model.turns:
            with pytest.raises(ValueError, match="pinned once"):
                pair.window.pin(tx, n)
        else:
            pair.window.pin(tx, n)
            model.pinned, model.unmarked = model.unmarked[:n], model.unmarked[n:]

    @rule(which=st.integers(0, 1), share=st.floats(0, 1))
    def evict(self, which: int, share: float) -> None:
        pair, tx = self.opened(which)
        exchanges = pair.model.exchanges
        count = round(share * len(exchanges))
        gone = sum(len(t) for t in exchanges[:count])
        assert pair.window.evict_turns(tx, count) == gone
        pair.model.evicted += gone
        if count:
            pair.model.unmarked, pair.model.turns = [], exchanges[count:]

    @rule(which=st.integers(0, 1), end=st.sampled_from(["commit", "rollback", "void", "begin again"]))
    def finish(self, which: int, end: str) -> None:
        pair, tx = self.opened(which)
        window = pair.window
        if end == "commit":
            pair.version += 1
            assert window.commit(tx) == pair.version
        else:
            if end == "void":
                window.void()
                for act in (lambda: window.append(tx, [1]), lambda: window.commit(tx)):
                    with pytest.raises(VersionConflict):
                        act()
            if end == "begin again":
                window.rollback(window.begin())
            window.rollback(tx)
            pair.model = pair.saved
        pair.tx = None
        with pytest.raises(VersionConflict):
            window.commit(tx)
        window.rollback(tx)

    @rule(which=st.integers(0, 1))
    def look(self, which: int) -> None:
        """A view that stays open while everything else goes on; of what is committed, since that can't change."""
        pair = self.pairs[which]
        if pair.tx is None and len(self.views) < 3:
            self.views.append((pair.window.view().__enter__(), pair.model.tokens))

    @rule()
    def look_away(self) -> None:
        if self.views:
            view, _ = self.views.pop(0)
            view.__exit__(None, None, None)
            with pytest.raises(StaleView):
                len(view)

    @rule(which=st.integers(0, 1))
    def replace(self, which: int) -> None:
        self.pairs[which].window.release()
        self.pairs[which] = Pair(self.arena)

    @invariant()
    def tokens_are_conserved(self) -> None:
        for pair in getattr(self, "pairs", ()):
            window, model = pair.window, pair.model
            assert window.appended == window.kept + window.evicted
            assert window.evicted == model.evicted
            assert window.pinned == len(model.pinned)
            assert window.turns == [len(t) for t in model.exchanges]
            assert sum(window.turns) == window.kept - window.pinned
            assert window.version == pair.version
            tokens = window.tokens()
            assert tokens.dtype == np.int32
            assert tokens.tolist() == model.tokens

    @invariant()
    def open_views_show_what_they_showed(self) -> None:
        for view, tokens in getattr(self, "views", ()):
            assert [int(i) for part in view for i in part] == tokens

    @invariant()
    def no_page_is_lost_and_free_pages_are_zero(self) -> None:
        if not hasattr(self, "pairs"):
            return
        used: set[int] = set()
        for pair in self.pairs:
            own = {*pair.window._pages.values(), *pair.window._held.values()}
            assert not own & used  # no page belongs to two windows
            used |= own
        if not self.views:
            assert self.arena.used_pages == len(used)
        assert all(not self.arena.page(p).any() for p in self.arena._free)

    def teardown(self) -> None:
        for view, _ in getattr(self, "views", ()):
            view.__exit__(None, None, None)
        for pair in getattr(self, "pairs", ()):
            pair.window.release()
        if hasattr(self, "arena"):
            assert self.arena.used_pages == 0


WindowsAgainstLists.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestWindowsAgainstLists = WindowsAgainstLists.TestCase


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


def fastest(act: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return min(times)


def test_appending_and_reading_are_done_by_pages_and_not_by_tokens() -> None:
    """4096 tokens in and out cost far less than one Python object for each would."""
    ids = np.arange(1, 4097, dtype=np.int32)
    window = TokenWindow(Arena(2 * pages_for(4096)), 4096)

    def by_pages() -> None:
        tx = window.begin()
        window.append(tx, ids)
        window.tokens()
        window.rollback(tx)

    def by_tokens() -> None:
        for _ in range(10):
            list(map(int, ids))

    assert fastest(by_pages) < fastest(by_tokens)
