"""What a sender remembers of an origin."""

from __future__ import annotations

import pytest

from otelctx.delta.limits import Limits
from otelctx.delta.links import Answerer, BootIds, NackBudget, TableRevisions

SAME, OTHER, EARLIER = Answerer

# --- processes behind the origin ---


def test_a_restart_is_one_change_for_good() -> None:
    boots = BootIds(Limits())
    assert boots.seen(1, began=0, now=1) is SAME
    assert boots.seen(1, began=500, now=501) is SAME
    assert boots.switch(501) is None
    assert boots.seen(2, began=502, now=503) is OTHER
    assert boots.seen(2, began=504, now=505) is SAME
    assert not boots.balanced(506)
    assert (boots.switch(502), boots.switch(504)) == (1, None)


def test_a_late_answer_of_the_old_process_says_nothing() -> None:
    """A generation of minutes is under way while its worker is replaced: that is a rollout, not a balancer."""
    boots = BootIds(Limits())
    boots.seen(1, began=0, now=1)
    boots.seen(2, began=300, now=301)
    assert boots.seen(1, began=100, now=400) is EARLIER
    assert boots.seen(2, began=401, now=402) is SAME
    assert not boots.balanced(403)


def test_returning_to_an_earlier_process_is_a_balancer_for_ten_minutes() -> None:
    boots = BootIds(Limits())
    boots.seen(1, began=0, now=1)
    boots.seen(2, began=2, now=3)
    assert boots.seen(1, began=4, now=5) is OTHER
    assert boots.balanced(604)
    assert not boots.balanced(605)


def test_concurrent_first_exchanges_to_two_processes_are_found_out_by_the_next() -> None:
    boots = BootIds(Limits())
    boots.seen(1, began=0, now=2)
    assert boots.seen(2, began=1, now=3) is EARLIER
    assert not boots.balanced(4)
    assert boots.seen(2, began=4, now=5) is OTHER
    assert boots.balanced(6)


def test_three_processes_within_a_minute_are_a_balancer_and_over_hours_they_are_restarts() -> None:
    quick, slow = BootIds(Limits()), BootIds(Limits())
    for at, boot_id in enumerate((1, 2, 3)):
        quick.seen(boot_id, began=at * 10, now=at * 10 + 1)
        slow.seen(boot_id, began=at * 3600, now=at * 3600 + 1)
    assert quick.balanced(30)
    assert not slow.balanced(7202)


def test_a_process_counts_as_recent_from_when_it_was_last_heard_of() -> None:
    for last, balanced in ((100, True), (50, False)):
        boots = BootIds(Limits())
        boots.seen(1, began=0, now=1)
        boots.seen(1, began=last - 1, now=last)
        boots.seen(2, began=110, now=111)
        boots.seen(3, began=120, now=121)
        assert boots.balanced(122) is balanced


def test_only_so_many_processes_are_remembered() -> None:
    boots = BootIds(Limits())
    for boot_id in range(1000):
        boots.seen(boot_id, began=boot_id * 100, now=boot_id * 100 + 1)
    assert len(boots._earlier) <= 8


def test_the_second_lost_base_within_twenty_compact_frames_is_one_too_many() -> None:
    for between, spent in ((19, True), (20, False)):
        budget = NackBudget(Limits())
        budget.sent()
        assert not budget.spent(None)
        for _ in range(between):
            budget.sent()
        assert budget.spent(None) is spent


def test_each_change_of_process_counts_once_and_the_second_one_counts_again() -> None:
    budget = NackBudget(Limits())
    budget.sent()
    assert [budget.spent(1) for _ in range(10)] == [False] * 10
    assert budget.spent(2)  # a worker that crashes all the time


# --- the revision of the static table ---


def test_the_first_revision_is_written_until_somebody_has_acked_and_then_the_lowest_that_is_seen() -> None:
    tables = TableRevisions(Limits(), own=3)
    assert tables.current(0.0) == 1
    tables.seen(3, 0.0)
    assert tables.current(1.0) == 3
    tables.seen(2, 2.0)  # an older worker behind the same origin
    tables.seen(3, 3.0)
    assert tables.current(4.0) == 2
    tables.seen(3, 500.0)
    assert (tables.current(601.9), tables.current(602.0)) == (2, 3)  # it has not been seen for ten minutes
    assert tables.current(1100.0) == 1  # nobody has


@pytest.mark.parametrize(("named", "written"), [(0, 1), (1, 1), (3, 3), (9, 3), (2**32 - 1, 3)])
def test_no_newer_revision_than_our_own_is_written_whatever_an_ack_names(named: int, written: int) -> None:
    tables = TableRevisions(Limits(), own=3)
    tables.seen(named, 0.0)
    assert tables.current(1.0) == written
