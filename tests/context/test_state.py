from __future__ import annotations

import random
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.keys import Value, normalise
from otelctx.context.state import EMPTY, State, Window, entry
from otelctx.errors import ContextLimitExceeded

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_./-]{0,20}", fullmatch=True) | st.sampled_from(["session.id", "user.tier"])
VALUES = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False).map(lambda x: x + 0.0)
    | st.binary(max_size=30)
)
MAPS = st.dictionaries(NAMES, VALUES, max_size=12)


def state_of(values: dict[str, Value]) -> State:
    state = EMPTY
    for name, value in values.items():
        state = state.put(name, value)
    return state


def test_the_empty_state_has_sixteen_zero_bytes_as_root() -> None:
    assert EMPTY.root == bytes(16)
    assert EMPTY.put("a", 1).drop(["a"]).root == bytes(16)


def test_leaf_and_root_are_what_the_wire_format_says() -> None:
    """Worked by hand, so that another language can be held to it."""
    leaf_a = sha256(b"\x00\x01a" + b"\x02" + b"\x00\x08" + (7).to_bytes(8, "big")).digest()[:16]
    leaf_b = sha256(b"\x00\x01b" + b"\x01" + b"\x00\x02hi").digest()[:16]
    assert entry("a", 7).leaf == leaf_a
    assert state_of({"b": "hi", "a": 7}).root == sha256(leaf_a + leaf_b).digest()[:16]


@given(MAPS, MAPS)
def test_applying_the_difference_gives_the_target(base: dict[str, Value], target: dict[str, Value]) -> None:
    a, b = state_of(base), state_of(target)
    assert a.apply(*a.diff(b)).root == b.root
    assert a.diff(a) == ([], [])


@pytest.mark.parametrize("before", [1, True, 1.0, "1", b"1"])
@pytest.mark.parametrize("after", [1, True, 1.0, "1", b"1", 0.0, 0, False])
def test_values_that_python_calls_equal_are_told_apart(before: Value, after: Value) -> None:
    a, b = EMPTY.put("k", before), EMPTY.put("k", after)
    put, delete = a.diff(b)
    changed = type(before) is not type(after) or before != after
    assert bool(put) is changed
    assert delete == []
    assert (a.root == b.root) is not changed
    result = a.apply(put, delete)
    assert result.root == b.root
    assert type(result["k"]) is type(after)


def test_negative_zero_is_zero() -> None:
    assert EMPTY.put("k", normalise(-0.0)).root == EMPTY.put("k", 0.0).root


@given(MAPS, st.randoms(use_true_random=False))
def test_the_root_does_not_depend_on_the_order_of_insertion(values: dict[str, Value], rng: random.Random) -> None:
    items = list(values.items())
    rng.shuffle(items)
    assert state_of(dict(items)).root == state_of(values).root


def test_a_change_that_changes_nothing_is_the_same_object() -> None:
    state = EMPTY.put("a", 1)
    assert state.put("a", 1) is state
    assert state.put("a", True) is not state


def test_the_sixty_fourth_place_is_kept_for_completeness() -> None:
    state = state_of({f"k{n:02}": n for n in range(63)})
    assert len(state.put("otelctx.incomplete", True)) == 64
    with pytest.raises(ContextLimitExceeded, match="64"):
        state.put("one.more", 1)


def test_a_state_over_2900_bytes_is_refused_at_the_source_and_leaves_the_old_one() -> None:
    state = EMPTY.put("a", "x" * 1024).put("b", "x" * 1024)
    with pytest.raises(ContextLimitExceeded, match="2900"):
        state.put("c", "x" * 1024)
    assert sorted(state) == ["a", "b"]


def test_a_repr_has_names_and_no_values() -> None:
    assert "secret" not in repr(EMPTY.put("user.id", "secret"))
    assert "user.id" in repr(EMPTY.put("user.id", "secret"))


def test_session_and_completeness_are_read_by_type() -> None:
    assert EMPTY.put("session.id", "s").session_id == "s"
    assert EMPTY.put("session.id", 5).session_id is None
    assert EMPTY.put("otelctx.incomplete", True).incomplete
    assert not EMPTY.put("otelctx.incomplete", 1).incomplete


def test_windows_are_ordered_by_generation_then_version() -> None:
    assert Window(1, 2, generation=1, version=9).newer_than(None)
    assert Window(1, 2, generation=2, version=0).newer_than(Window(1, 2, generation=1, version=9))
    assert not Window(1, 2, generation=1, version=9).newer_than(Window(5, 6, generation=1, version=9))
