"""Stop strings are found however the text arrives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.inference.stopping import StopMatcher

LETTERS = st.text("ab", max_size=24)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)


def run(pieces: Sequence[str], stops: Sequence[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece) for piece in pieces)
    return shown + matcher.finish(), matcher.stopped


def expected(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """By definition: the text up to the first position at which some stop string is complete, without the longest
    that ends there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(LETTERS, STOPS, st.lists(st.integers(0, 24), max_size=8))
def test_the_cut_into_pieces_makes_no_difference(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert run(pieces, stops) == expected(text, stops)


@given(LETTERS, STOPS)
def test_nothing_is_held_back_that_cannot_become_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for position, character in enumerate(text, 1):
        shown += matcher.push(character)
        if matcher.stopped:
            break
        held = text[len(shown) : position]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_without_stop_strings_text_passes_as_it_is() -> None:
    text = "x" * 10
    assert StopMatcher(()).push(text) is text


@pytest.mark.parametrize("more", ["", "anything", "stop"])
def test_after_the_stop_there_is_nothing(more: str) -> None:
    matcher = StopMatcher(("stop",))
    assert matcher.push("a stop b") == "a "
    assert matcher.push(more) == ""
    assert matcher.finish() == ""
