from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from otelctx.errors import ArenaExhausted, StaleView, TokenLimitExceeded, VersionConflict
from otelctx.sessions.arena import Arena
from otelctx.sessions.window import TokenWindow, Tx

LIMIT = 400


class WindowAgainstLists(RuleBasedStateMachine):
    """A window behaves as a plain list of exchanges does, whatever is begun, committed and rolled back."""

    @initialize(pinned=st.integers(0, 150))
    def start(self, pinned: int) -> None:
        self.arena = Arena(16)
        self.window = TokenWindow(self.arena, LIMIT)
        self.counter = 0
        self.pinned: list[int] = []
        self.turns: list[list[int]] = []
        self.evicted = 0
        self.tx: Tx | None = None
        tx = self.window.begin()
        self.pinned = self.fresh(pinned)
        self.window.append(tx, self.pinned)
        self.window.pin(tx, pinned)
        self.window.commit(tx)

    def fresh(self, n: int) -> list[int]:
        self.counter += n
        return list(range(self.counter - n + 1, self.counter + 1))

    @precondition(lambda self: self.tx is None)
    @rule()
    def begin(self) -> None:
        self.saved = ([list(t) for t in self.turns], self.evicted, self.window.tokens())
        self.tx = self.window.begin()

    @precondition(lambda self: self.tx is not None)
    @rule(n=st.integers(0, 200))
    def exchange(self, n: int) -> None:
        assert self.tx is not None
        before = self.window.tokens()
        marks = self.window.marks
        self.window.mark_turn(self.tx)
        ids = self.fresh(n)
        if len(before) + n > LIMIT:
            with pytest.raises(TokenLimitExceeded):
                self.window.append(self.tx, ids)
            assert np.array_equal(self.window.tokens(), before)
            self.window.marks = marks
        else:
            try:
                self.window.append(self.tx, ids)
            except ArenaExhausted:
                assert np.array_equal(self.window.tokens(), before)
                self.window.marks = marks
            else:
                self.turns.append(ids)

    @precondition(lambda self: self.tx is not None and bool(self.turns))
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        assert self.tx is not None
        count = data.draw(st.integers(0, len(self.turns)))
        gone = sum(len(t) for t in self.turns[:count])
        assert self.window.evict_turns(self.tx, count) == gone
        self.turns = self.turns[count:]
        self.evicted += gone

    @precondition(lambda self: self.tx is not None)
    @rule(commit=st.booleans())
    def finish(self, commit: bool) -> None:
        assert self.tx is not None
        version = self.window.version
        if commit:
            assert self.window.commit(self.tx) == version + 1
        else:
            self.window.rollback(self.tx)
            self.turns, self.evicted, tokens = self.saved
            assert np.array_equal(self.window.tokens(), tokens)
            assert self.window.version == version
        with pytest.raises(VersionConflict):
            self.window.append(self.tx, [1])
        self.tx = None

    @invariant()
    def tokens_are_conserved(self) -> None:
        if not hasattr(self, "window"):
            return
        window = self.window
        assert window.appended == window.kept + window.evicted
        assert window.evicted == self.evicted
        assert window.turns == [len(t) for t in self.turns]
        assert window.tokens().tolist() == self.pinned + [i for t in self.turns for i in t]

    def teardown(self) -> None:
        if hasattr(self, "window"):
            self.window.release()
            assert self.arena.used_pages == 0
            assert all(not self.arena.page(p).any() for p in range(self.arena.pages))


WindowAgainstLists.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestWindowAgainstLists = WindowAgainstLists.TestCase


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
        assert np.shares_memory(parts[0], arena.page(window._pages[0]))
        with pytest.raises(ValueError, match="read-only"):
            parts[0][0] = 7
    with pytest.raises(StaleView):
        list(view)
    with pytest.raises(StaleView):
        len(view)


def test_pages_are_not_reused_while_a_view_of_them_is_open() -> None:
    arena = Arena(2)
    window = filled(arena, 128)
    with window.view() as view:
        window.release()
        assert arena.free_pages == 0
        assert [int(part[0]) for part in view] == [1, 65]
    assert arena.free_pages == 2


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


def test_a_window_is_pinned_once_and_before_its_first_exchange() -> None:
    window = filled(Arena(4), 10)
    tx = window.begin()
    with pytest.raises(ValueError, match="pinned once"):
        window.pin(tx, 2)
