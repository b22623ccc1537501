from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from otelctx.errors import ArenaExhausted, StaleView, TokenLimitExceeded, VersionConflict
from otelctx.sessions.arena import Arena, pages_for
from otelctx.sessions.snapshot import logical_pages
from otelctx.sessions.view import View
from otelctx.sessions.window import TokenWindow, Tx

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

    def forget(self, n: int) -> int:
        """The ``n`` oldest tokens that are not pinned go, and with them the exchanges that are left without one."""
        n = min(n, sum(map(len, self.exchanges)))
        left = n
        for exchange in self.exchanges:
            cut = min(left, len(exchange))
            del exchange[:cut]
            left -= cut
        self.turns = [turn for turn in self.turns if turn]
        self.evicted += n
        return n

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

    @rule(which=st.integers(0, 1), share=st.floats(0, 1))
    def evict_tokens(self, which: int, share: float) -> None:
        pair, tx = self.opened(which)
        model = pair.model
        n = round(share * (sum(map(len, model.exchanges)) + 5))
        before = model.tokens
        last = model.turns and not model.turns[-1]  # begun, without a token yet
        gone = model.forget(n)
        if last and not (model.turns and not model.turns[-1]):
            model.turns.append([])
        assert pair.window.evict_tokens(tx, n) == gone
        assert model.tokens == before[: len(model.pinned)] + before[len(model.pinned) + gone :]

    @rule(
        which=st.integers(0, 1),
        share=st.floats(0, 1),
        n=st.integers(0, 200),
        evicted=st.sampled_from([0, 0, 0, 1, 64, 100]),
        pinned=st.sampled_from([None, 0, 1, 64, 100]),
    )
    def replace_tokens(self, which: int, share: float, n: int, evicted: int, pinned: int | None) -> None:
        """Rendered anew: a share of what there was, and something else behind it."""
        pair, tx = self.opened(which)
        model, window = pair.model, pair.window
        ids = [*model.tokens[: round(share * len(model.tokens))], *self.fresh(n)]
        pin = min(len(model.pinned) if pinned is None else pinned, len(ids))
        try:
            window.replace(tx, ids, evicted=evicted, pinned=pin)
        except TokenLimitExceeded:
            assert len(ids) > LIMIT
        except ArenaExhausted:
            gone = model.evicted + evicted
            assert len(logical_pages(pin, pin + gone, len(ids) + gone)) > self.arena.free_pages
        else:
            model.evicted += evicted
            model.pinned, model.unmarked, model.turns = ids[:pin], ids[pin:], []

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
    def start_anew(self, which: int) -> None:
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
            window = pair.window
            before, fresh = (window._tx.pages, window._tx.fresh) if window._tx is not None else (window._pages, set())
            own = {*window._pages.values(), *before.values()}
            assert own == fresh | set(before.values())
            assert sorted(window._pages) == logical_pages(window.pinned, window.head, window.tail)
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
