from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otelctx.sessions.arena import Arena
from otelctx.sessions.expiry import due, oldest_idle
from otelctx.sessions.record import SessionRecord
from otelctx.sessions.window import TokenWindow

ARENA = Arena(1)


def record(used: float, leases: int) -> SessionRecord:
    return SessionRecord("s", "alice", TokenWindow(ARENA, 64), 0.0, used, leases=leases)


RECORDS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 2)), max_size=12).map(
    lambda rows: [record(used, leases) for used, leases in sorted(rows)]
)


@given(records=RECORDS, idle=st.integers(0, 50), now=st.integers(100, 150))
def test_due_are_exactly_those_idle_too_long_that_nobody_holds(
    records: list[SessionRecord], idle: int, now: int
) -> None:
    assert due(records, idle, now) == [r for r in records if now - r.used > idle and not r.leases]


@given(records=RECORDS)
def test_the_oldest_idle_session_is_the_least_recently_used_that_nobody_holds(records: list[SessionRecord]) -> None:
    free = [r for r in records if not r.leases]
    assert oldest_idle(records) is (free[0] if free else None)


def test_a_look_costs_what_it_finds() -> None:
    """Of a million sessions in order, only the first that is not due is looked at."""
    records = iter([record(0, 0), record(0, 1), record(90, 0), record(95, 0)])
    assert len(due(records, 60, 100)) == 1
    assert next(records).used == 95
