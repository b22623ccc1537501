"""Laws of joining: without them the order in which answers come back would decide what a caller sees."""

from __future__ import annotations

from functools import reduce
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.keys import INT_MAX, Rule, Value
from otelctx.context.scope import RULES, Scope, UpValue

COUNTS = st.integers(0, INT_MAX)
ORDERLESS: list[tuple[Rule, st.SearchStrategy[Value]]] = [
    ("sum", COUNTS),
    ("max", st.integers(-(2**63), INT_MAX)),
    ("min", st.integers(-(2**63), INT_MAX)),
    ("max", st.floats(allow_nan=False)),
    ("min", st.floats(allow_nan=False)),
    ("any", st.booleans()),
]


def test_integers_that_are_one_float_are_told_apart() -> None:
    assert [reduce(RULES["max"], order) for order in permutations((2**53, 2**53 + 1))] == [2**53 + 1] * 2
    assert [reduce(RULES["min"], order) for order in permutations((2**53, 2**53 + 1))] == [2**53] * 2


@pytest.mark.parametrize(("rule", "values"), ORDERLESS)
def test_the_order_in_which_branches_answer_does_not_matter(rule: Rule, values: st.SearchStrategy[Value]) -> None:
    join = RULES[rule]

    @given(st.lists(values, min_size=1, max_size=6), st.randoms(use_true_random=False))
    def holds(several: list[Value], order: Random) -> None:
        shuffled = order.sample(several, len(several))
        assert reduce(join, several) == reduce(join, shuffled)

    holds()


@pytest.mark.parametrize(("rule", "values"), ORDERLESS)
def test_how_branches_are_grouped_does_not_matter(rule: Rule, values: st.SearchStrategy[Value]) -> None:
    join = RULES[rule]

    @given(values, values, values)
    def holds(a: Value, b: Value, c: Value) -> None:
        assert join(join(a, b), c) == join(a, join(b, c))

    holds()


@pytest.mark.parametrize(("rule", "values"), [law for law in ORDERLESS if law[0] != "sum"])
def test_the_same_answer_twice_is_once(rule: Rule, values: st.SearchStrategy[Value]) -> None:
    """Sums are not so, which is why an ack that carries some has an event id."""
    join = RULES[rule]

    @given(values, values)
    def holds(a: Value, b: Value) -> None:
        assert join(join(a, b), b) == join(a, b)

    holds()


@given(st.lists(st.tuples(st.sampled_from("ab"), COUNTS), max_size=8), st.integers(0, 8))
def test_joining_by_way_of_inner_scopes_is_joining(records: list[tuple[str, int]], cut: int) -> None:
    def ups(some: list[tuple[str, int]], scope: Scope) -> Scope:
        for name, value in some:
            scope.merge_ups({name: UpValue("sum", value)})
        return scope

    flat, outer = ups(records, Scope()), Scope()
    for part in (records[cut:], records[:cut]):
        ups(part, Scope(parent=outer)).end()
    assert outer.ups() == flat.ups()
