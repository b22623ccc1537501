"""Who waits, for how long, and who is next."""

from __future__ import annotations

import pytest

from otelctx.errors import Overloaded
from otelctx.inference.scheduler import Limits, Scheduler

LIMITS = Limits(rows=3, queue=5)


def test_rows_count_from_admission_on() -> None:
    scheduler = Scheduler(LIMITS)
    for turn in range(5):
        scheduler.submit(turn)
    assert [scheduler.admit() for _ in range(4)] == [0, 1, 2, None]
    scheduler.finish(1)  # before it started
    assert scheduler.admit() == 3
    assert scheduler.step() == []


def full(rows: int, queue: int, took: tuple[float, ...] = ()) -> float:
    """What a client is told that comes to a full queue, after turns that had their rows for so many seconds."""
    scheduler = Scheduler(Limits(rows=rows, queue=queue))
    for seconds in took:
        scheduler.finish(-1, seconds)
    for turn in range(queue):
        scheduler.submit(turn)
    with pytest.raises(Overloaded) as caught:
        scheduler.submit(queue, priority=9)
    assert caught.value.status == 503
    assert caught.value.retry_after is not None
    return caught.value.retry_after


def test_a_full_queue_says_when_to_come_back_and_later_if_it_is_longer() -> None:
    assert 1 <= full(3, 1) < full(3, 5) < full(3, 1000) <= 30


def test_when_to_come_back_is_estimated_from_how_long_turns_took() -> None:
    assert full(4, 8, (2.0, 2.0)) == 1 + 2 * 2.0
    assert full(4, 8, (0.1,)) < full(4, 8, (0.1, 3.0)) < full(4, 8, (3.0,))
    assert full(4, 8, (600.0,)) == 30


def order_of(priorities: list[int], patience: int = 32) -> list[int]:
    """In which order turns of these priorities get the one row."""
    scheduler = Scheduler(Limits(rows=1, patience=patience))
    for turn, priority in enumerate(priorities):
        scheduler.submit(turn, priority)
    order = []
    while (turn_ := scheduler.admit()) is not None:
        order.append(turn_)
        scheduler.finish(turn_)
    return order


def test_a_higher_priority_goes_first_and_equal_ones_first_come_first_served() -> None:
    assert order_of([0, -1, 5, 0, 5]) == [2, 4, 0, 3, 1]


def test_a_turn_is_overtaken_only_so_often() -> None:
    assert order_of([-1, 1, 1, 1, 1, 0], patience=2) == [1, 2, 0, 3, 4, 5]


def test_patience_starts_anew_with_the_next_that_has_waited_longest() -> None:
    scheduler = Scheduler(Limits(rows=9, patience=2))
    for turn, priority in enumerate([0, 0, 1, 1, 1]):
        scheduler.submit(turn, priority)
    assert [scheduler.admit(), scheduler.admit()] == [2, 3]
    scheduler.finish(0)  # it was overtaken twice, the next one only while it stood behind it
    assert [scheduler.admit(), scheduler.admit()] == [4, 1]


def test_a_running_turn_is_not_stopped_for_a_higher_priority() -> None:
    scheduler = Scheduler(LIMITS)
    for turn in range(3):
        scheduler.submit(turn)
        scheduler.admit()
        scheduler.start(turn, 0, 4)
    scheduler.submit(3, priority=9)
    assert scheduler.admit() is None
    assert {work.turn for work in scheduler.step()} == {0, 1, 2}
