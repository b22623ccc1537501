from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.errors import Overloaded
from otelctx.inference.scheduler import Limits, Scheduler, Work

LIMITS = Limits(rows=3, queue=5, chunk=8, idle_chunk=32)


@given(
    prompts=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 12), st.integers(0, 40)), min_size=1, max_size=12)
)
def test_every_prompt_token_is_fed_once_every_decoding_turn_each_step_and_nobody_starves(
    prompts: list[tuple[int, int, int]],
) -> None:
    """Turns of (prompt tokens, output tokens, step of arrival), some of them cancelled by running out of output."""
    scheduler = Scheduler(Limits(rows=3, queue=100, chunk=8, idle_chunk=32))
    fed: dict[int, list[int]] = {turn: [] for turn in range(len(prompts))}
    left = {turn: output for turn, (_, output, _) in enumerate(prompts)}
    decoding: set[int] = set()
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
        assert {w.turn for w in work if w.decode} == decoding
        assert sum(w.count for w in work if not w.decode) <= (8 if decoding else 32)
        assert scheduler.running <= 3
        for item in work:
            if not item.decode:
                fed[item.turn] += range(item.start, item.start + item.count)
        for turn in scheduler.fed(work):
            decoding.add(turn)
            left[turn] -= 1
            if left[turn] == 0:
                scheduler.finish(turn)
                decoding.discard(turn)
        if step > 40 and scheduler.idle:
            break
    assert scheduler.idle
    assert started == arrived  # first come, first served
    assert fed == {turn: list(range(length)) for turn, (length, _, _) in enumerate(prompts)}


def test_prefills_take_turns_by_chunk() -> None:
    scheduler = Scheduler(LIMITS)
    for turn in (0, 1):
        scheduler.submit(turn)
        scheduler.admit()
        scheduler.start(turn, 0, 64)
    order = []
    for _ in range(4):
        work = scheduler.step()
        order.append([(w.turn, w.start, w.count) for w in work])
        scheduler.fed(work)
    assert order == [[(0, 0, 32)], [(1, 0, 32)], [(0, 32, 32)], [(0, 0, 1), (1, 32, 8)]]


def test_a_prefill_beside_decoding_turns_is_small() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(0)
    scheduler.admit()
    scheduler.start(0, 0, 4)
    assert scheduler.fed(scheduler.step()) == [0]
    scheduler.submit(1)
    scheduler.admit()
    scheduler.start(1, 10, 60)  # ten tokens reused
    assert scheduler.step() == [Work(0, 0, 1, decode=True), Work(1, 10, 8, decode=False)]


def test_a_full_queue_says_when_to_come_back() -> None:
    scheduler = Scheduler(LIMITS)
    for turn in range(5):
        scheduler.submit(turn)
    with pytest.raises(Overloaded) as caught:
        scheduler.submit(5)
    assert caught.value.status == 503
    assert caught.value.retry_after > 1


def test_a_failed_step_is_repeated_as_it_was() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(0)
    scheduler.admit()
    scheduler.start(0, 0, 50)
    assert scheduler.step() == scheduler.step()


def test_finish_works_in_every_state_and_twice() -> None:
    scheduler = Scheduler(LIMITS)
    for turn in range(4):
        scheduler.submit(turn)
    for turn in range(2):
        scheduler.admit()
        scheduler.start(turn, 0, 3 if turn == 0 else 60)
    scheduler.fed(scheduler.step())
    work = scheduler.step()
    for turn in (*range(4), *range(4), 99):
        scheduler.finish(turn)
    assert scheduler.idle
    assert scheduler.fed(work) == []


def test_nothing_to_prefill_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="nothing to prefill"):
        Scheduler(LIMITS).start(0, 5, 5)
