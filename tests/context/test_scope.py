from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.keys import INT_MAX, KeySpec
from otelctx.context.scope import Scope, UpValue
from otelctx.context.state import EMPTY, Window
from otelctx.errors import ContextLimitExceeded, ContextTypeError

TIER = KeySpec("user.tier", str)
SPENT = KeySpec("usage.tokens.output", int, "up", "internal", "sum")


def test_a_refused_value_leaves_the_scope_as_it_was() -> None:
    scope = Scope(EMPTY.put("user.tier", "gold"))
    with pytest.raises(ContextTypeError, match=r"user\.tier.*str.*int"):
        scope.set(TIER, 1)
    with pytest.raises(ContextLimitExceeded):
        scope.set(TIER, "x" * 1025)
    assert dict(scope.state) == {"user.tier": "gold"}


def test_reset_undoes_only_its_own_value() -> None:
    scope = Scope()
    first = scope.set(TIER, "gold")
    scope.set(TIER, "silver")
    assert scope.reset(first) is False
    assert scope.state["user.tier"] == "silver"


def test_reset_restores_absence_and_an_earlier_value() -> None:
    scope = Scope()
    outer = scope.set(TIER, "gold")
    inner = scope.set(TIER, "silver")
    assert scope.reset(inner) is True
    assert scope.state["user.tier"] == "gold"
    assert scope.reset(outer) is True
    assert "user.tier" not in scope.state


def test_incomplete_is_an_entry_of_the_state_and_so_sticks_downstream() -> None:
    scope = Scope(EMPTY.put("user.tier", "gold"), incomplete=True)
    assert scope.incomplete
    assert scope.state["otelctx.incomplete"] is True
    assert Scope(scope.state).incomplete


def test_sums_from_parallel_branches_add_up() -> None:
    scope = Scope()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: scope.record(SPENT, 100), range(200)))
    assert scope.up("usage.tokens.output") == 20_000


def test_a_sum_saturates_instead_of_wrapping() -> None:
    scope = Scope()
    scope.record(SPENT, INT_MAX)
    scope.record(SPENT, INT_MAX)
    assert scope.up("usage.tokens.output") == INT_MAX


@pytest.mark.parametrize(
    ("rule", "values", "result"),
    [
        ("sum", [1, 2, 3], 6),
        ("max", [2, 9, 4], 9),
        ("min", [2.0, 0.5, 4.0], 0.5),
        ("any", [False, True, False], True),
        ("last", ["a", "b"], "b"),
    ],
)
def test_each_rule_joins_as_its_name_says(rule: str, values: list[object], result: object) -> None:
    scope = Scope()
    for value in values:
        scope.merge_ups({"x": UpValue(rule, value)})  # type: ignore[arg-type]
    assert scope.up("x") == result


@given(st.lists(st.tuples(st.booleans(), st.integers(-1000, 1000))))
def test_adding_up_what_is_taken_gives_the_sum(steps: list[tuple[bool, int]]) -> None:
    """However the takes fall between the records, each increment is taken exactly once."""
    scope, seen = Scope(), 0
    for take, amount in steps:
        scope.record(SPENT, amount)
        if take:
            seen += sum(int(up.value) for up in scope.take_ups().values())
    seen += sum(int(up.value) for up in scope.take_ups().values())
    assert seen == sum(amount for _, amount in steps)
    assert scope.take_ups() == {}


def test_a_window_report_is_taken_whole_and_only_when_newer() -> None:
    scope = Scope()
    scope.report(Window(used=10, limit=512, generation=1, version=2))
    scope.report(Window(used=99, limit=512, generation=1, version=1))
    assert scope.window == Window(used=10, limit=512, generation=1, version=2)
    scope.report(Window(used=5, limit=512, generation=2, version=0))
    assert scope.window is not None
    assert scope.window.used == 5


def test_on_end_values_join_the_enclosing_scope_once_and_later_ones_are_refused() -> None:
    outer = Scope()
    inner = Scope(parent=outer)
    inner.record(SPENT, 7)
    inner.end()
    inner.end()
    assert outer.up("usage.tokens.output") == 7
    assert inner.merge_ups({"usage.tokens.output": UpValue("sum", 1)}) is False
    assert outer.up("usage.tokens.output") == 7
