"""What is left of a deadline, in a header."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.delta.timeout import decode, encode


@pytest.mark.parametrize(
    ("seconds", "value"),
    [(0.0, "0"), (-3.0, "0"), (0.0009, "0"), (0.001, "1"), (0.099, "99"), (0.1, "100"), (0.1999, "190"), (1.0, "1000"),
     (1.234, "1200"), (59.999, "59000"), (86400.0, "86000000"), (1e9, "99000000"), (math.inf, "99000000"),
     (-math.inf, "0")],
)  # fmt: skip
def test_two_significant_digits_rounded_down(seconds: float, value: str) -> None:
    assert encode(seconds) == value


@given(st.floats(allow_nan=False))
def test_a_deadline_is_never_extended_and_loses_a_tenth_at_most(seconds: float) -> None:
    left = decode([encode(seconds)])
    assert left is not None
    assert left <= max(0.0, seconds)
    assert left >= min(seconds, 99000.0) * 0.9 - 0.001
    assert len(encode(seconds).rstrip("0")) <= 2


@pytest.mark.parametrize(
    "lines",
    [[], [b""], [b"-1"], [b"+1"], [b"1.5"], [b"1e3"], [b" 1"], [b"1_0"], [b"0x10"], [b"inf"], [b"nan"], [b"100, 200"],
     [b"100", b"200"], [b"1" * 9], [b"1" * 100_000], ["\u0661"], ["\u00b2"], ["\uff11"], [b"\xb2"], [b"1\x00"],
     [b"100m"], [b"otelctx"]],
)  # fmt: skip
def test_anything_but_one_number_is_no_deadline(lines: list[bytes | str]) -> None:
    assert decode(lines) is None


@given(st.lists(st.binary(max_size=12) | st.text(max_size=12), max_size=3))
def test_any_lines_are_survived(lines: list[bytes | str]) -> None:
    found = decode(lines)
    assert found is None or 0 <= found < 100_000
