"""The cost of the same keys as W3C baggage."""

from __future__ import annotations

from otelctx.demo.baggage import line_bytes


def test_the_line_is_counted_with_name_quoting_and_end() -> None:
    expected = "baggage: user.tier=gold,feature.flags=a%2Cb,debug.sample=true\r\n"
    assert line_bytes({"user.tier": "gold", "feature.flags": "a,b", "debug.sample": True}) == len(expected)


def test_no_keys_no_line() -> None:
    assert line_bytes({}) == 0
