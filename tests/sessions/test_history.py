"""Sessions and their versions against plain lists: whatever is committed, rolled back, restored, labelled and given up,
tokens are exact, nothing leaks, and no session shows another's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from otelctx.errors import ArenaExhausted, TokenLimitExceeded, VersionNotFound
from otelctx.sessions.arena import Arena
from otelctx.sessions.record import SessionRecord, reclaim
from otelctx.sessions.versions import Retention
from otelctx.sessions.window import TokenWindow

LIMIT = 300
KEEP = Retention(last=4, every=5, milestones=2)


@dataclass(frozen=True)
class State:
    tokens: tuple[int, ...] = ()
    turns: tuple[int, ...] = ()
    pinned: int = 0
    evicted: int = 0
    beside: tuple[object, ...] = (0, (), None, ())


def record_of(arena: Arena) -> SessionRecord:
    return SessionRecord("s", "alice", TokenWindow(arena, LIMIT), 0.0, 0.0, retention=KEEP)


@dataclass
class Modelled:
    record: SessionRecord
    states: dict[int, State] = field(default_factory=lambda: {0: State()})  # all there ever were
    labels: dict[str, int] = field(default_factory=dict)

    @property
    def now(self) -> State:
        return self.states[self.record.window.version]


class SessionsAgainstLists(RuleBasedStateMachine):
    @initialize(pages=st.integers(24, 80))
    def start(self, pages: int) -> None:
        self.arena = Arena(pages)
        self.sessions = [Modelled(record_of(self.arena)), Modelled(record_of(self.arena))]
        self.counter = 0
        for n in range(8):
            self.turn(self.sessions[n % 2], 10 * n, "append", 0, True)

    def fresh(self, n: int) -> list[int]:
        self.counter += n
        return list(range(self.counter - n + 1, self.counter + 1))

    @rule(
        which=st.integers(0, 1),
        n=st.integers(0, 150),
        act=st.sampled_from(["append", "append", "evict turns", "evict tokens", "replace", "replace all"]),
        share=st.floats(0, 1),
        keep=st.sampled_from([True, True, True, False]),
        times=st.integers(1, 3),
    )
    def turns(self, which: int, n: int, act: str, share: float, keep: bool, times: int) -> None:
        for _ in range(times):
            self.turn(self.sessions[which], n, act, share, keep)

    def turn(self, session: Modelled, n: int, act: str, share: float, keep: bool) -> None:
        record, window, before = session.record, session.record.window, session.now
        tx = window.begin()
        try:
            if act == "evict turns":
                window.evict_turns(tx, round(share * len(window.turns)))
            elif act == "evict tokens":
                window.evict_tokens(tx, round(share * window.kept))
            elif act.startswith("replace"):
                stays = round(share * len(before.tokens)) if act == "replace" else 0
                window.replace(tx, [*before.tokens[:stays], *self.fresh(n)], evicted=n % 3, pinned=0)
            window.mark_turn(tx)
            window.append(tx, self.fresh(n))
        except (TokenLimitExceeded, ArenaExhausted):
            keep = False
        assert window.committed.kept == len(before.tokens)  # whatever is open
        after = State(tuple(window.tokens().tolist()), tuple(window.turns), window.pinned, window.evicted)
        if not keep:
            window.rollback(tx)
            return
        number = record.commit(tx)
        record.turns += 1
        record.pending, record.system, record.messages = (number,), f"system {number}", (("user", str(number)),)
        session.states[number] = replace(after, beside=(record.turns, (number,), record.system, record.messages))

    @rule(which=st.integers(0, 1), back=st.integers(-1, 12))
    def restore(self, which: int, back: int) -> None:
        session = self.sessions[which]
        record = session.record
        current = record.window.version
        target = max(0, current - back)
        known = [v.number for v in record.kept if v.number <= target] + [current] * (target == current)
        try:
            number = record.restore(target)
        except VersionNotFound:
            assert back < 0 or target == 0 or not known
        except ArenaExhausted:
            assert not self.arena.can_allocate(1)
            assert len(record.kept) == 1  # the one that was asked for
        else:
            assert number == max(known)
            assert record.window.version == current + 1
            session.states[current + 1] = session.states[number]
        session.labels = {name: n for name, n in session.labels.items() if (name, n) in record.labels}

    @rule(which=st.integers(0, 1), name=st.sampled_from("abc"), back=st.integers(0, 8), remove=st.booleans())
    def label(self, which: int, name: str, back: int, remove: bool) -> None:
        session = self.sessions[which]
        record = session.record
        target = max(0, record.window.version - back)
        there = {v.number for v in record.kept} | {record.window.version}
        try:
            if remove:
                record.unlabel(name)
                del session.labels[name]
            else:
                assert record.label(name, target) == target
                session.labels[name] = target
        except VersionNotFound:
            assert name not in session.labels if remove else target == 0 or target not in there

    @rule(which=st.integers(0, 1), free=st.integers(0, 8))
    def press(self, which: int, free: int) -> None:
        session = self.sessions[which]
        reclaim((session.record,), self.arena, free)
        assert self.arena.can_allocate(free) or not session.record.kept
        there = {v.number for v in session.record.kept} | {session.record.window.version}
        session.labels = {name: number for name, number in session.labels.items() if number in there}

    @rule(which=st.integers(0, 1))
    def expire(self, which: int) -> None:
        if self.sessions[which].record.window.version < 6:
            return  # there is little to lose yet
        other = self.sessions[1 - which].record
        self.sessions[which].record.release()
        assert not self.sessions[which].record.kept
        window = other.window
        shared = {page for v in other.kept for page in v.window.pages.tolist()} | set(window._pages.values())
        assert self.arena.used_pages == len(shared)
        self.sessions[which] = Modelled(record_of(self.arena))

    @invariant()
    def every_version_that_is_kept_is_exactly_what_it_was(self) -> None:
        for session in getattr(self, "sessions", ()):
            record, window, now = session.record, session.record.window, session.now
            assert window.tokens().tolist() == list(now.tokens)
            assert (tuple(window.turns), window.pinned, window.evicted) == (now.turns, now.pinned, now.evicted)
            assert (record.turns, record.pending, record.system, record.messages) == now.beside
            assert window.appended == window.kept + window.evicted
            numbers = [v.number for v in record.kept]
            assert numbers == sorted(set(numbers))
            assert dict(record.labels) == session.labels
            assert set(session.labels.values()) <= {*numbers, window.version}
            for v in record.kept:
                state = session.states[v.number]
                held = self.arena.copy(v.window.pages.tolist()).reshape(-1, 64)
                table = dict(zip(v.window.logical, held, strict=True))
                at = [*range(v.window.pinned), *range(v.window.head, v.window.tail)]
                assert [int(table[n // 64][n % 64]) for n in at] == list(state.tokens)
                assert v.window.counts.evicted == state.evicted
                assert (v.turns, v.pending, v.system, v.messages) == state.beside

    @invariant()
    def every_page_is_counted_as_often_as_it_is_held(self) -> None:
        if not hasattr(self, "sessions"):
            return
        counts = [0] * self.arena.pages
        for session in self.sessions:
            for page in session.record.window._pages.values():
                counts[page] += 1
            for v in session.record.kept:
                for page in v.window.pages.tolist():
                    counts[page] += 1
        assert counts == self.arena._references
        assert all(not self.arena.page(p).any() for p in self.arena._free)

    def teardown(self) -> None:
        for session in getattr(self, "sessions", ()):
            session.record.release()
        if hasattr(self, "arena"):
            assert self.arena.used_pages == 0


SessionsAgainstLists.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSessionsAgainstLists = SessionsAgainstLists.TestCase


def grown(arena: Arena, *lengths: int) -> SessionRecord:
    """A session with one commit of so many tokens each."""
    record, start = record_of(arena), 1
    for n in lengths:
        tx = record.window.begin()
        record.window.append(tx, range(start, start + n))
        record.commit(tx)
        record.turns += 1
        start += n
    return record


def test_a_session_of_one_version_costs_nothing_more() -> None:
    arena = Arena(8)
    record = grown(arena, 100)
    assert (record.kept, arena.used_pages) == ((), 2)


def test_versions_of_a_growing_conversation_share_its_pages() -> None:
    arena = Arena(8)
    record = grown(arena, 100, 20, 20, 20)
    assert ([v.number for v in record.kept], arena.used_pages) == ([1, 2, 3], 3)


def test_what_is_restored_goes_on_in_a_page_of_its_own() -> None:
    arena = Arena(8)
    record = grown(arena, 10, 10)
    assert record.restore(1) == 1
    tx = record.window.begin()
    record.window.append(tx, [7] * 10)
    record.commit(tx)
    assert record.window.tokens().tolist() == [*range(1, 11), *[7] * 10]
    assert record.restore(2) == 2  # history is not rewritten: what was rolled back can be brought back
    assert (record.window.tokens().tolist(), record.window.version) == (list(range(1, 21)), 5)


def test_a_rollback_into_a_window_of_another_shape_leaves_the_slab_as_a_fresh_one_would_be() -> None:
    arena = Arena(8)
    record = grown(arena, 200, 50)
    tx = record.window.begin()
    record.window.replace(tx, range(1000, 1100), evicted=3)
    record.commit(tx)
    slab = arena._slab.copy()
    tx = record.window.begin()
    record.window.restore(tx, record.kept[0].window)
    record.window.append(tx, range(50))
    record.window.rollback(tx)
    assert (arena._slab == slab).all()
    assert record.window.tokens().tolist() == list(range(1000, 1100))


def test_a_label_keeps_its_version_and_a_key_names_one_by_its_prompt() -> None:
    record = grown(Arena(8), 1)
    record.system = "Be brief."
    record.label("prompt v3.1.0")
    for n in range(9):
        tx = record.window.begin()
        record.window.append(tx, [n])
        record.commit(tx)
    assert [v.number for v in record.kept] == [1, 5, 7, 8, 9]
    assert record.labelled("prompt v3.1.0") == 1
    with pytest.raises(VersionNotFound) as caught:
        record.labelled("prompt v3.2.0")
    assert (caught.value.status, caught.value.code) == (404, "label_not_found")
    record.unlabel("prompt v3.1.0")
    assert [v.number for v in record.kept] == [5, 7, 8, 9]
