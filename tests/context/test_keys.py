from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.keys import INT_MAX, INT_MIN, KeyRegistry, KeySpec, Kind, check, kind_of, normalise
from otelctx.errors import ConfigError, ContextLimitExceeded, ContextTypeError


@pytest.mark.parametrize("name", ["", "A", "ä", ".x", "a b", "a=b", "x" * 65, "a\n"])
def test_a_name_outside_the_grammar_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="must match"):
        KeySpec(name, str)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"type": list}, "type must be"),
        ({"type": int, "flow": "up"}, "rule"),
        ({"type": int, "rule": "sum"}, "rule"),
        ({"type": float, "flow": "up", "rule": "sum"}, "'sum' is for int"),
        ({"type": str, "flow": "up", "rule": "max"}, "'max' is for int, float"),
        ({"type": int, "flow": "up", "rule": "any"}, "'any' is for bool"),
        ({"type": str, "flow": "local", "visibility": "public"}, "public"),
        ({"type": str, "flow": "Local"}, "flow must be down or local or up, not 'Local'"),
        ({"type": str, "visibility": "Public"}, "visibility must be internal or public, not 'Public'"),
        ({"type": int, "flow": "up", "rule": "avg"}, "rule must be sum or max or min or any or last, not 'avg'"),
        ({"name": "a/b", "type": str, "visibility": "public"}, "baggage"),
    ],
)
def test_a_declaration_that_means_nothing_says_why(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KeySpec(**({"name": "a.key"} | kwargs))  # type: ignore[arg-type]


def test_the_mark_of_incompleteness_is_nobodys_to_declare() -> None:
    """Else an application could take off what must stick."""
    with pytest.raises(ConfigError, match=r"scope\.incomplete"):
        KeyRegistry().declare(KeySpec("otelctx.incomplete", bool))


def test_the_place_of_a_declaration_does_not_make_it_another_one() -> None:
    registry = KeyRegistry()
    first = registry.declare(KeySpec("a", int, declared="x.py:1"))
    assert registry.declare(KeySpec("a", int, declared="y.py:2")) is first
    with pytest.raises(ConfigError, match=r"x\.py:1"):
        registry.declare(KeySpec("a", str, declared="y.py:3"))


@pytest.mark.parametrize(
    ("type_", "value"), [(int, True), (bool, 1), (float, 1), (int, 1.0), (str, b"x"), (bytes, "x"), (str, None)]
)
def test_a_value_is_of_exactly_its_keys_type(type_: type, value: object) -> None:
    with pytest.raises(ContextTypeError, match=r"'a\.key'.*" + type_.__name__ + r".*here\.py:7"):
        check(KeySpec("a.key", type_, declared="here.py:7"), value)


def test_nan_is_refused_and_negative_zero_becomes_zero() -> None:
    spec = KeySpec("a", float)
    with pytest.raises(ContextTypeError, match="NaN"):
        check(spec, math.nan)
    assert math.copysign(1, float(check(spec, -0.0))) == 1


@pytest.mark.parametrize("value", [INT_MAX + 1, INT_MIN - 1, 10**4000])
def test_an_integer_outside_64_bits_is_refused(value: int) -> None:
    with pytest.raises(ContextLimitExceeded, match="64"):
        normalise(value)


def test_limits_count_bytes_and_differ_by_direction() -> None:
    down, up = KeySpec("a", str), KeySpec("b", str, "up", "internal", "last")
    assert check(down, "ä" * 512) == "ä" * 512
    with pytest.raises(ContextLimitExceeded, match="1025 bytes"):
        check(down, "ä" * 512 + "x")
    assert check(up, "x" * 256) == "x" * 256
    with pytest.raises(ContextLimitExceeded, match="257 bytes"):
        check(up, "x" * 257)


@given(st.text() | st.integers() | st.booleans() | st.floats() | st.binary() | st.none() | st.lists(st.integers()))
def test_whatever_is_set_is_kept_or_refused_with_one_of_our_errors(value: object) -> None:
    try:
        kept = normalise(value)
    except (ContextTypeError, ContextLimitExceeded):
        return
    assert type(kept) is type(value)
    assert kept == value
    assert kind_of(kept) in Kind
