"""What a sender remembers of an origin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.state import EMPTY, State
from otelctx.delta.bases import memory
from otelctx.delta.limits import Limits
from otelctx.delta.links import Answerer, BootIds, HeldBases, NackBudget
from otelctx.delta.messages import Held

SAME, OTHER, EARLIER = Answerer


def state(session: str | None, n: int) -> State:
    base = EMPTY if session is None else EMPTY.put("session.id", session)
    return base.put("n", n)


# --- bases that the origin holds ---


def test_the_state_itself_is_the_best_base_and_else_the_one_acknowledged_last() -> None:
    held = HeldBases(Limits())
    first, second, third = (state("s", n) for n in range(3))
    held.keep(first, Held.PROCESS, 0.0)
    held.keep(second, Held.PROCESS, 1.0)
    assert held.best(first, shared_only=False, now=2.0) == first
    assert held.best(third, shared_only=False, now=2.0) == second
    held.keep(first, Held.PROCESS, 3.0)
    assert held.best(third, shared_only=False, now=4.0) == first


def test_a_base_of_one_process_expires_and_a_shared_one_does_not() -> None:
    held = HeldBases(Limits())
    held.keep(state("s", 1), Held.SHARED, 0.0)
    held.keep(state("s", 2), Held.PROCESS, 0.0)
    assert held.best(state("s", 2), shared_only=False, now=59.9) == state("s", 2)
    assert held.best(state("s", 2), shared_only=False, now=60.0) == state("s", 1)
    assert held.bytes == memory(state("s", 1))


def test_behind_a_balancer_only_shared_bases_count() -> None:
    held = HeldBases(Limits())
    held.keep(state("s", 1), Held.SHARED, 0.0)
    held.keep(state("s", 2), Held.PROCESS, 0.0)
    assert held.best(state("s", 2), shared_only=True, now=1.0) == state("s", 1)


def test_another_process_leaves_what_is_shared() -> None:
    held = HeldBases(Limits())
    held.keep(state("a", 1), Held.SHARED, 0.0)
    held.keep(state("a", 2), Held.PROCESS, 0.0)
    held.keep(state("b", 1), Held.PROCESS, 0.0)
    held.drop_process()
    assert held.best(state("a", 2), shared_only=False, now=1.0) == state("a", 1)
    assert held.best(state("b", 1), shared_only=False, now=1.0) is None
    assert held.bytes == memory(state("a", 1))


@pytest.mark.parametrize("empty", [None, ""])
def test_no_session_is_not_the_session_of_another(empty: str | None) -> None:
    held = HeldBases(Limits())
    held.keep(state(empty, 1), Held.PROCESS, 0.0)
    assert held.best(state(None, 1), shared_only=False, now=0.0) is None
    assert held.best(state(None, 2), shared_only=False, now=0.0) is None
    held.drop(None)
    held.drop("unknown")


def test_sessions_are_given_up_least_recently_used_first() -> None:
    held = HeldBases(Limits(held_sessions=2))
    for session in ("a", "b", "a", "c"):
        held.keep(state(session, 0), Held.SHARED, 0.0)
    assert [s for s in "abc" if held.best(state(s, 0), shared_only=True, now=0.0)] == ["a", "c"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["keep", "best", "drop", "drop_process"]), st.integers(0, 3), st.integers(0, 6)),
        max_size=60,
    ),
    st.sampled_from([Held.PROCESS, Held.SHARED]),
)
def test_the_accounts_balance(steps: list[tuple[str, int, int]], kind: Held) -> None:
    """What is counted is what a fresh look at all sessions finds, and four bases a session at most."""
    held, now = HeldBases(Limits(held_sessions=3)), 0.0
    for what, session, n in steps:
        now += 7
        one = state(f"s{session}", n)
        if what == "keep":
            held.keep(one, kind, now)
        elif what == "best":
            held.best(one, shared_only=False, now=now)
        elif what == "drop":
            held.drop(one.session_id)
        else:
            held.drop_process()
        kept = [base for bases in held._sessions.values() for base in bases.values()]
        assert held.bytes == sum(memory(base.state) for base in kept)
        assert all(len(bases) <= 4 for bases in held._sessions.values())


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
