"""One baggage header: the application's members to the byte, ours where they may go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.current import REGISTRY, ContextKey
from otelctx.exchange.baggage import baggage_line

ContextKey("exchange.line", str, visibility="public")
OURS = {"exchange.line": "gold"}


@pytest.mark.parametrize(
    ("injected", "present", "ours", "line"),
    [
        (None, [], {}, None),
        ("a=1", [], {}, "a=1"),
        ("a=1;p=2", [], OURS, "a=1;p=2,exchange.line=gold"),
        (None, ["a=1, b=2"], OURS, "a=1,b=2,exchange.line=gold"),
        (None, ["a=1", "b=2"], {}, "a=1,b=2"),
        ("a=2", ["a=1,b=2"], {}, "b=2,a=2"),
        ("exchange.line=lead,a=1", [], {}, "a=1"),
        ("exchange.line=lead", [], OURS, "exchange.line=gold"),
        (None, [" exchange.line = lead "], {}, None),
        (None, ["otelctx.incomplete=true"], {}, None),
        ("", [",, ,"], {}, None),
    ],
)
def test_members_are_joined(injected: str | None, present: list[str], ours: dict[str, str], line: str | None) -> None:
    assert baggage_line(injected, present, ours, REGISTRY) == line


def test_ours_are_left_out_and_never_the_applications_when_there_is_no_room() -> None:
    theirs = ",".join(f"k{n}=v" for n in range(64))
    assert baggage_line(theirs, [], OURS, REGISTRY) == theirs
    large = "k=" + "v" * 8185
    assert baggage_line(large, [], OURS, REGISTRY) == large


member = st.from_regex(r"[a-z]{1,8}=[!-+\--:<-~]{0,8}(;[a-z]+)?", fullmatch=True)


@given(st.lists(member, max_size=8, unique_by=lambda text: text.partition("=")[0]))
def test_other_peoples_members_are_kept_to_the_byte(members: list[str]) -> None:
    line = baggage_line(",".join(members) or None, [], OURS, REGISTRY)
    assert line == ",".join([*members, "exchange.line=gold"])
