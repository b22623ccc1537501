"""A turn continues the row that holds most of its prompt, never a stranger's, and destroys as little as it can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelctx.errors import BudgetExhausted
from otelctx.inference.reuse import Hope
from otelctx.inference.rows import Rows


class FakeKV:
    """The book-keeping of ``RowKV`` with the tokens themselves as its columns."""

    def __init__(self, rows: int, length: int) -> None:
        self.rows, self.length = rows, length
        self.columns: list[list[int]] = [[] for _ in range(rows)]

    @property
    def lengths(self) -> list[int]:
        return [len(columns) for columns in self.columns]

    def crop(self, row: int, length: int) -> None:
        assert 0 <= length <= len(self.columns[row])
        del self.columns[row][length:]

    def copy(self, src: int, dst: int, length: int) -> None:
        assert src != dst
        self.columns[dst] = self.columns[src][:length]


class Bench:
    def __init__(self, rows: int = 3, length: int = 40) -> None:
        self.kv = FakeKV(rows, length)
        kv: Any = self.kv
        self.rows = Rows(kv)

    def run(self, ids: list[int], owner: str = "a", own: int | None = None, *, keep: bool = False) -> tuple[int, int]:
        """A whole turn: take, feed, give back."""
        taken = self.rows.take(np.array(ids, np.int32), owner, Hope(row=own))
        row, shared = taken.row, taken.reused
        assert self.kv.columns[row] == ids[:shared]
        assert shared < len(ids)
        self.kv.columns[row] += ids[shared:]
        self.rows.fed(row, ids[shared:])
        assert self.rows.tokens(row).tolist() == ids
        if not keep:
            self.rows.give_back(row)
        return row, shared


def test_the_next_turn_continues_its_row() -> None:
    bench = Bench()
    row, _ = bench.run([1, 2, 3])
    assert bench.run([1, 2, 3, 4], own=row) == (row, 3)


def test_of_rows_that_share_as_much_a_session_continues_its_own() -> None:
    """The other one is another conversation's, which would lose what it holds beyond the common beginning."""
    bench = Bench(rows=2)
    held = {bench.run(ids)[0]: ids for ids in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6])}
    other, own = sorted(held)
    assert bench.run([1, 2, 3, 4, 7], own=own) == (own, 4)
    assert bench.rows.tokens(other).tolist() == held[other]
    assert bench.run([1, 2, 3, 4, 8], own=other) == (other, 4)


def test_at_least_one_token_is_left_to_feed() -> None:
    bench = Bench()
    row, _ = bench.run([1, 2, 3])
    assert bench.run([1, 2, 3], own=row) == (row, 2)


def test_a_common_beginning_is_copied_and_the_other_row_stays() -> None:
    bench = Bench()
    first, _ = bench.run([1, 2, 3, 4, 5, 6])
    second, shared = bench.run([1, 2, 9])
    assert (second != first, shared) == (True, 2)
    assert bench.rows.tokens(first).tolist() == [1, 2, 3, 4, 5, 6]


def test_a_beginning_is_copied_from_a_row_that_is_running() -> None:
    bench = Bench()
    running, _ = bench.run([1, 2, 3, 4], keep=True)
    other, shared = bench.run([1, 2, 3, 9])
    assert (other != running, shared) == (True, 3)


def test_nothing_of_another_owner_is_used() -> None:
    bench = Bench()
    first, _ = bench.run([1, 2, 3, 4], owner="a")
    second, shared = bench.run([1, 2, 3, 4, 5], owner="b", own=first)
    assert shared == 0
    assert bench.run([1, 2, 3, 4, 5], owner="a")[1] == (4 if second != first else 0)


def test_the_row_that_was_used_longest_ago_goes_first() -> None:
    bench = Bench(rows=2)
    first, _ = bench.run([1, 1, 1])
    second, _ = bench.run([2, 2, 2])
    bench.run([1, 1, 1, 1], own=first)
    assert bench.run([3, 3, 3])[0] == second


def test_with_one_row_left_it_is_cropped_in_place() -> None:
    bench = Bench(rows=1)
    bench.run([1, 2, 3, 4, 5])
    assert bench.run([1, 2, 9]) == (0, 2)


def test_without_a_free_row_nothing_is_touched() -> None:
    bench = Bench(rows=1)
    bench.run([1, 2], keep=True)
    with pytest.raises(BudgetExhausted):
        bench.run([1, 2, 3])
    assert bench.kv.columns == [[1, 2]]


def test_dropping_idle_rows_forgets_them_and_leaves_those_in_which_a_turn_runs() -> None:
    bench = Bench()
    idle, _ = bench.run([1, 2, 3, 4])
    running, _ = bench.run([5, 6], keep=True)
    assert bench.rows.drop_idle() == 4
    assert bench.rows.tokens(running).tolist() == [5, 6]
    assert bench.run([1, 2, 3, 4, 5], own=idle)[1] == 0
    assert bench.rows.drop_idle() == 5


def test_what_was_dropped_for_a_turn_that_was_taken_back_is_the_reason_the_next_one_gets() -> None:
    bench = Bench()
    row, _ = bench.run([1, 2, 3, 4, 5, 6], keep=True)
    bench.rows.crop(row, 2)
    bench.rows.give_back(row)
    after = [1, 2, 3, 4, 5, 6, 7]
    taken = bench.rows.take(np.array(after, np.int32), "a", Hope(head=2, kept=6, row=row))
    assert (taken.row, taken.reused, taken.miss) == (row, 2, "dropped")


def test_a_row_that_another_conversation_of_the_owners_has_taken_is_the_reason() -> None:
    bench = Bench(rows=1)
    row, _ = bench.run([1, 2, 3, 4, 5, 6])
    bench.run([1, 2, 9, 9])
    taken = bench.rows.take(np.array([1, 2, 3, 4, 5, 6, 7], np.int32), "a", Hope(head=2, kept=6, row=row))
    assert (taken.reused, taken.miss) == (2, "row_taken")


def test_the_rows_count_what_running_turns_may_fill() -> None:
    bench = Bench(rows=2, length=40)
    taken = bench.rows.take(np.array([1, 2], np.int32), "a", room=12)
    assert (bench.rows.reserved, bench.rows.budget) == (12, 80)
    bench.rows.give_back(taken.row)
    assert bench.rows.reserved == 0


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=12), st.sampled_from("ab"), st.booleans()),
        max_size=25,
    )
)
def test_what_a_row_is_said_to_hold_it_holds(turns: list[tuple[list[int], str, bool]]) -> None:
    """Whatever was copied, cropped and stolen before; and reuse never crosses owners."""
    bench = Bench()
    busy: list[int] = []
    owners: dict[int, str] = {}
    for ids, owner, keep in turns:
        if len(busy) == 3:
            bench.rows.give_back(busy.pop(0))
        held = {row: bench.rows.tokens(row).tolist() for row, whose in owners.items() if whose == owner}
        row, shared = bench.run(ids, owner, keep=keep)
        best = max((common(tokens, ids) for tokens in held.values()), default=0)
        assert shared == min(best, len(ids) - 1)
        owners[row] = owner
        if keep:
            busy.append(row)
        assert bench.rows.busy == len(busy)
        for other in range(3):
            assert bench.rows.tokens(other).tolist() == bench.kv.columns[other]


def common(one: list[int], other: list[int]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
