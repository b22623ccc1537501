from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from otelctx.errors import ConfigError, Overloaded
from otelctx.inference.scheduler import Limits, Scheduler, Work

# So long a reach that a prompt's tokens cost the same wherever they stand.
LIMITS = Limits(rows=3, queue=5, chunk=8, idle_chunk=32, reach=10**9)


class SchedulerAgainstSets(RuleBasedStateMachine):
    """Turns come, run, fail, are cancelled and begin again in any order; each token of each turn is fed once."""

    @initialize(
        rows=st.integers(1, 4),
        chunk=st.integers(1, 8),
        idle=st.integers(8, 40),
        reach=st.sampled_from([1, 30, 10**9]),
        patience=st.integers(0, 3),
    )
    def start(self, rows: int, chunk: int, idle: int, reach: int, patience: int) -> None:
        self.limits = Limits(rows=rows, queue=5, chunk=chunk, idle_chunk=idle, reach=reach, patience=patience)
        self.scheduler = Scheduler(self.limits)
        self.turns = 0
        self.queue: list[int] = []
        self.priority: dict[int, int] = {}
        self.overtaken = 0  # by how many, the oldest in the queue
        self.admitted: set[int] = set()
        self.left: dict[int, list[int]] = {}  # prompt positions that are still to be fed
        self.decoding: set[int] = set()
        self.passed_over: dict[int, int] = {}  # steps since a prefill got its last chunk

    @rule(priority=st.integers(-1, 1))
    def submit(self, priority: int) -> None:
        self.turns += 1
        self.priority[self.turns] = priority
        if len(self.queue) == self.limits.queue:
            with pytest.raises(Overloaded):
                self.scheduler.submit(self.turns, priority)
        else:
            self.scheduler.submit(self.turns, priority)
            self.queue.append(self.turns)

    @rule()
    def admit(self) -> None:
        turn = self.scheduler.admit()
        if self.queue and len(self.admitted) + len(self.left) + len(self.decoding) < self.limits.rows:
            assert turn is not None
            oldest = self.queue[0]
            if turn == oldest:
                self.overtaken = 0
            else:
                assert self.priority[turn] > self.priority[oldest]
                self.overtaken += 1
            assert self.overtaken <= self.limits.patience
            self.queue.remove(turn)
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
        self.within_budget(prefills)
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

    def within_budget(self, prefills: list[Work]) -> None:
        """As much as there is to do and room for, and not a token more."""
        wanted = sum(map(len, self.left.values()))
        fed = sum(w.count for w in prefills)
        if not self.decoding:
            assert fed == min(self.limits.idle_chunk, wanted)
            return
        cost = self.limits.cost
        room = self.limits.chunk - sum(cost(w.start, w.count) for w in prefills)
        assert room >= 0 or fed == 1
        unfinished = [w for w in prefills if w.count < len(self.left[w.turn])]
        assert unfinished in ([], prefills[-1:])
        for item in unfinished:
            assert cost(item.start, item.count + 1) - cost(item.start, item.count) > room
        unserved = [left[0] for turn, left in self.left.items() if turn not in {w.turn for w in prefills}]
        assert not unserved or unfinished or any(cost(start, 1) > room for start in unserved)

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.cancel(data.draw(st.integers(1, self.turns)))

    def cancel(self, turn: int) -> None:
        self.scheduler.finish(turn)
        if self.queue[:1] == [turn]:
            self.overtaken = 0
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


def test_a_chunk_behind_a_long_prefix_is_smaller_as_attention_makes_it_dearer() -> None:
    limits = Limits()
    counts = {}
    for start in (0, 1024, 4096, 100_000):
        scheduler = Scheduler(limits)
        for turn, (begin, end) in enumerate([(0, 1), (start, start + 500)]):
            scheduler.submit(turn)
            scheduler.admit()
            scheduler.start(turn, begin, end)
            if not turn:
                scheduler.fed(scheduler.step())
        counts[start] = scheduler.step()[1].count
    assert counts[0] == limits.chunk
    assert counts[0] > counts[1024] > counts[4096] > counts[100_000] >= 1
    assert limits.chunk // 3 <= counts[4096] <= limits.chunk // 2


def test_a_token_that_is_dearer_than_the_budget_is_fed_alone() -> None:
    scheduler = Scheduler(Limits(chunk=1, reach=1))
    for turn, (start, end) in enumerate([(0, 1), (50, 52), (50, 52)]):
        scheduler.submit(turn)
        scheduler.admit()
        scheduler.start(turn, start, end)
        if not turn:
            scheduler.fed(scheduler.step())
    assert scheduler.step() == [Work(0, 0, 1, decode=True), Work(1, 50, 1, decode=False)]


@given(prefixes=st.lists(st.integers(0, 6000), min_size=2, max_size=4), decoding=st.integers(1, 3), data=st.data())
@settings(max_examples=40)
def test_over_any_stretch_decoding_turns_get_the_same_and_prefills_get_equal_shares(
    prefixes: list[int], decoding: int, data: st.DataObject
) -> None:
    """Turns that decode get a token in each step. Prefills get as many chunks, to one, and as much computed, to half:
    whatever stands before their tokens."""
    limits = Limits()
    scheduler = Scheduler(limits)
    for turn in range(decoding + len(prefixes)):
        scheduler.submit(turn)
        scheduler.admit()
    for turn in range(decoding):
        scheduler.start(turn, 0, 1)
    scheduler.fed(scheduler.step())
    for turn, prefix in enumerate(prefixes, decoding):
        scheduler.start(turn, prefix, prefix + 10_000)
    steps = []
    for _ in range(60):
        steps.append(scheduler.step())
        scheduler.fed(steps[-1])
    begin = data.draw(st.integers(0, 30))
    stretch = steps[begin : begin + data.draw(st.integers(1, 30))]
    costs: dict[int, list[int]] = {turn: [] for turn in range(decoding, decoding + len(prefixes))}
    for work in stretch:
        assert [w.turn for w in work if w.decode] == list(range(decoding))
        for item in work[decoding:]:
            costs[item.turn].append(limits.cost(item.start, item.count))
    chunks = sorted(map(len, costs.values()))
    assert chunks[-1] - chunks[0] <= 1
    if chunks[0] == chunks[-1]:
        assert max(map(sum, costs.values())) <= 1.5 * min(map(sum, costs.values()))


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
