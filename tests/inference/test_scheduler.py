from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from otelctx.errors import ConfigError, Overloaded
from otelctx.inference.scheduler import Limits, Scheduler, Work

LIMITS = Limits(rows=3, queue=5, chunk=8, idle_chunk=32)


class SchedulerAgainstSets(RuleBasedStateMachine):
    """Turns come, run, fail, are cancelled and begin again in any order; each token of each turn is fed once."""

    @initialize(rows=st.integers(1, 4), chunk=st.integers(1, 8), idle=st.integers(8, 40))
    def start(self, rows: int, chunk: int, idle: int) -> None:
        self.limits = Limits(rows=rows, queue=5, chunk=chunk, idle_chunk=idle)
        self.scheduler = Scheduler(self.limits)
        self.turns = 0
        self.queue: list[int] = []
        self.admitted: set[int] = set()
        self.left: dict[int, list[int]] = {}  # prompt positions that are still to be fed
        self.decoding: set[int] = set()
        self.passed_over: dict[int, int] = {}  # steps since a prefill got its last chunk

    @rule()
    def submit(self) -> None:
        self.turns += 1
        if len(self.queue) == self.limits.queue:
            with pytest.raises(Overloaded):
                self.scheduler.submit(self.turns)
        else:
            self.scheduler.submit(self.turns)
            self.queue.append(self.turns)

    @rule()
    def admit(self) -> None:
        turn = self.scheduler.admit()
        if self.queue and len(self.admitted) + len(self.left) + len(self.decoding) < self.limits.rows:
            assert turn == self.queue.pop(0)
            self.admitted.add(turn)
        else:
            assert turn is None

    @precondition(lambda self: self.admitted)
    @rule(start=st.integers(0, 20), count=st.integers(1, 100))
    def begin(self, start: int, count: int) -> None:
        turn = min(self.admitted)
        self.admitted.remove(turn)
        self.run(turn, start, count)

    @precondition(lambda self: self.decoding)
    @rule(count=st.integers(1, 100))
    def begin_again(self, count: int) -> None:
        """The KV of a decoding turn was lost."""
        turn = min(self.decoding)
        self.decoding.remove(turn)
        self.run(turn, 0, count)

    def run(self, turn: int, start: int, count: int) -> None:
        self.scheduler.start(turn, start, start + count)
        self.left[turn] = list(range(start, start + count))
        self.passed_over[turn] = 0

    @rule(fails=st.booleans(), cancel=st.booleans())
    def step(self, fails: bool, cancel: bool) -> None:
        work = self.scheduler.step()
        prefills = [w for w in work if not w.decode]
        assert {w.turn for w in work if w.decode} == self.decoding
        assert all(w.count == 1 for w in work if w.decode)
        assert len({w.turn for w in work}) == len(work) <= self.limits.rows
        room = self.limits.chunk if self.decoding else self.limits.idle_chunk
        # As much as there is to do and room for, and not a token more.
        assert sum(w.count for w in prefills) == min(room, sum(map(len, self.left.values())))
        for item in prefills:
            assert self.left[item.turn][: item.count] == list(range(item.start, item.start + item.count))
        if fails:
            assert self.scheduler.step() == work
            return
        gone = work[0].turn if cancel and work else None
        if gone is not None:
            self.cancel(gone)
        ready = self.scheduler.fed(work)
        expected = []
        for item in work:
            if item.turn == gone:
                continue
            if item.decode:
                expected.append(item.turn)
                continue
            del self.left[item.turn][: item.count]
            self.passed_over[item.turn] = -1
            if not self.left[item.turn]:
                del self.left[item.turn]
                self.decoding.add(item.turn)
                expected.append(item.turn)
        assert ready == expected
        for turn in self.left:
            self.passed_over[turn] += 1

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.cancel(data.draw(st.integers(1, self.turns)))

    def cancel(self, turn: int) -> None:
        self.scheduler.finish(turn)
        self.queue = [t for t in self.queue if t != turn]
        self.admitted.discard(turn)
        self.decoding.discard(turn)
        self.left.pop(turn, None)

    @invariant()
    def rows_are_never_exceeded_and_nothing_is_lost(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        running = len(self.admitted) + len(self.left) + len(self.decoding)
        assert self.scheduler.running == running <= self.limits.rows
        assert self.scheduler.queued == len(self.queue)
        assert self.scheduler.idle == (not running and not self.queue)

    @invariant()
    def no_prefill_starves(self) -> None:
        """A round is over after as many steps as there are rows."""
        for turn in getattr(self, "left", ()):
            assert self.passed_over[turn] < self.limits.rows


SchedulerAgainstSets.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestSchedulerAgainstSets = SchedulerAgainstSets.TestCase


@given(
    prompts=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 12), st.integers(0, 40)), min_size=1, max_size=12)
)
def test_every_turn_is_served_to_its_end_first_come_first_served(prompts: list[tuple[int, int, int]]) -> None:
    """Turns of (prompt tokens, output tokens, step of arrival), through the loop that an engine runs."""
    scheduler = Scheduler(Limits(rows=3, queue=100, chunk=8, idle_chunk=32))
    fed: dict[int, list[int]] = {turn: [] for turn in range(len(prompts))}
    left = {turn: output for turn, (_, output, _) in enumerate(prompts)}
    arrived: list[int] = []
    started: list[int] = []
    for step in range(2000):
        for turn, (_, _, at) in enumerate(prompts):
            if at == step:
                scheduler.submit(turn)
                arrived.append(turn)
        while (turn_ := scheduler.admit()) is not None:
            started.append(turn_)
            scheduler.start(turn_, 0, prompts[turn_][0])
        work = scheduler.step()
        for item in work:
            if not item.decode:
                fed[item.turn] += range(item.start, item.start + item.count)
        for turn in scheduler.fed(work):
            left[turn] -= 1
            if left[turn] == 0:
                scheduler.finish(turn)
        if step > 40 and scheduler.idle:
            break
    assert scheduler.idle
    assert started == arrived
    assert set(left.values()) == {0}
    assert fed == {turn: list(range(length)) for turn, (length, _, _) in enumerate(prompts)}


def running(*turns: tuple[int, int, int]) -> Scheduler:
    scheduler = Scheduler(LIMITS)
    for turn, start, end in turns:
        scheduler.submit(turn)
        assert scheduler.admit() == turn
        scheduler.start(turn, start, end)
    return scheduler


def test_prefills_take_turns_by_chunk() -> None:
    scheduler = running((0, 0, 64), (1, 0, 64))
    order = []
    for _ in range(4):
        work = scheduler.step()
        order.append([(w.turn, w.start, w.count) for w in work])
        scheduler.fed(work)
    assert order == [[(0, 0, 32)], [(1, 0, 32)], [(0, 32, 32)], [(0, 0, 1), (1, 32, 8)]]


def test_a_prefill_beside_decoding_turns_is_small() -> None:
    scheduler = running((0, 0, 4))
    assert scheduler.fed(scheduler.step()) == [0]
    scheduler.submit(1)
    scheduler.admit()
    scheduler.start(1, 10, 60)  # ten tokens reused
    assert scheduler.step() == [Work(0, 0, 1, decode=True), Work(1, 10, 8, decode=False)]


def test_rows_count_from_admission_on() -> None:
    scheduler = Scheduler(LIMITS)
    for turn in range(5):
        scheduler.submit(turn)
    assert [scheduler.admit() for _ in range(4)] == [0, 1, 2, None]
    scheduler.finish(1)  # before it started
    assert scheduler.admit() == 3
    assert scheduler.step() == []


def test_a_full_queue_says_when_to_come_back_and_later_if_it_is_longer() -> None:
    asked = []
    for queue in (1, 5, 1000):
        scheduler = Scheduler(Limits(rows=3, queue=queue))
        for turn in range(queue):
            scheduler.submit(turn)
        with pytest.raises(Overloaded) as caught:
            scheduler.submit(queue)
        assert caught.value.status == 503
        asked.append(caught.value.retry_after)
    assert 1 <= asked[0] < asked[1] < asked[2] <= 30


def test_what_was_cancelled_or_began_again_during_a_step_is_not_counted_as_fed() -> None:
    scheduler = running((0, 0, 4), (1, 0, 4), (2, 5, 9))
    work = scheduler.step()
    scheduler.finish(0)
    scheduler.start(2, 0, 9)
    assert scheduler.fed(work) == [1]
    assert scheduler.step() == [Work(1, 0, 1, decode=True), Work(2, 0, 8, decode=False)]


def test_finish_works_in_every_state_and_twice() -> None:
    scheduler = running((0, 0, 3), (1, 0, 60))
    scheduler.submit(2)
    scheduler.submit(3)
    scheduler.admit()
    scheduler.fed(scheduler.step())
    work = scheduler.step()
    for turn in (*range(4), *range(4), 99):
        scheduler.finish(turn)
    assert scheduler.idle
    assert scheduler.fed(work) == []
    with pytest.raises(ValueError, match="no row"):
        scheduler.start(1, 0, 5)


def test_nothing_to_prefill_is_a_mistake() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(0)
    scheduler.admit()
    with pytest.raises(ValueError, match="nothing to prefill"):
        scheduler.start(0, 5, 5)


@pytest.mark.parametrize("name", ["rows", "chunk", "idle_chunk"])
def test_limits_under_which_nothing_would_move_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: 0})
