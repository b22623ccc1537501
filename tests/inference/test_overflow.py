from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.inference.overflow import ENDLESS, MIN_OUTPUT, Fits, Mode, Reject, Truncate, plan, reserve_for, too_long

COUNTS = st.integers(0, 600)
DEMAND = {
    "window": st.integers(64, 1024),
    "pinned": COUNTS,
    "turns": st.lists(st.integers(0, 200), max_size=12),
    "new": st.integers(1, 600),
    "max_tokens": st.none() | st.integers(1, 4096),
}


@given(**DEMAND, mode=st.sampled_from(["reject", "turns"]))
def test_whatever_is_decided_fits_and_accounts_for_every_token(
    window: int, pinned: int, turns: list[int], new: int, max_tokens: int | None, mode: Mode
) -> None:
    rendered = pinned + sum(turns) + new
    least = min(MIN_OUTPUT, reserve_for(max_tokens, window))
    decided = plan(window=window, pinned=pinned, turns=turns, new=new, max_tokens=max_tokens, mode=mode)
    match decided:
        case Fits(prompt, output):
            assert prompt == rendered
            assert least <= output <= window - prompt
            assert max_tokens is None or output <= max_tokens
        case Truncate():
            assert mode == "turns"
            assert decided.before == rendered == decided.prompt + decided.dropped
            assert decided.dropped == sum(turns[: decided.turns]) > 0
            assert decided.limit == window
            assert least <= decided.output <= window - decided.after
        case Reject(prompt, limit, requested, allowed, _, needed):
            assert (prompt, limit, requested, allowed) == (rendered, window, max_tokens, window - rendered)
            assert prompt + needed > window
            if mode == "turns":
                assert pinned + new + least > window


@given(**DEMAND)
def test_slide_decides_as_turns_does_and_leaves_the_answer_its_own_limit(
    window: int, pinned: int, turns: list[int], new: int, max_tokens: int | None
) -> None:
    decide = partial(plan, window=window, pinned=pinned, turns=turns, new=new, max_tokens=max_tokens)
    decided, model = decide(mode="slide"), decide(mode="turns")
    if isinstance(model, Reject):
        assert decided == replace(model, mode="slide")
    else:
        assert decided == replace(model, output=ENDLESS if max_tokens is None else max_tokens)


@given(**DEMAND)
def test_turns_drops_no_more_exchanges_than_it_takes_to_get_down_to_three_quarters(
    window: int, pinned: int, turns: list[int], new: int, max_tokens: int | None
) -> None:
    decided = plan(window=window, pinned=pinned, turns=turns, new=new, max_tokens=max_tokens, mode="turns")
    if isinstance(decided, Truncate):
        goal = window * 3 // 4
        assert decided.before - sum(turns[: decided.turns - 1]) > goal
        assert decided.after <= goal or decided.turns == len(turns)


@given(**DEMAND)
def test_what_reject_lets_in_turns_leaves_whole(
    window: int, pinned: int, turns: list[int], new: int, max_tokens: int | None
) -> None:
    decide = partial(plan, window=window, pinned=pinned, turns=turns, new=new, max_tokens=max_tokens)
    strict, lenient = decide(mode="reject"), decide(mode="turns")
    if isinstance(strict, Fits):
        assert lenient == strict
    if isinstance(lenient, Reject):
        assert isinstance(strict, Reject)


def test_a_truncation_goes_down_to_three_quarters_so_that_the_next_turns_fit() -> None:
    """In a conversation of equal exchanges the cut moves once in several turns, not with each."""
    turns: list[int] = []
    cuts = []
    for number in range(40):
        decided = plan(window=512, pinned=32, turns=turns, new=20, max_tokens=30, mode="turns")
        if isinstance(decided, Truncate):
            cuts.append(number)
            turns = turns[decided.turns :]
        assert not isinstance(decided, Reject)
        turns.append(20 + 30)
    assert len(cuts) > 5
    assert all(later - earlier >= 2 for earlier, later in pairwise(cuts))


def test_a_truncation_is_exact() -> None:
    decided = plan(window=512, pinned=32, turns=[60] * 7, new=40, max_tokens=64, mode="turns")
    assert decided == Truncate(turns=2, dropped=120, before=492, after=372, limit=512, output=64)


@pytest.mark.parametrize(("max_tokens", "output"), [(None, 212), (64, 64), (10**9, 212)])
def test_a_huge_max_tokens_never_makes_a_prompt_too_long(max_tokens: int | None, output: int) -> None:
    """The output may go on until the window is full; it is never negative."""
    decide = partial(plan, window=512, pinned=0, turns=[], new=300, max_tokens=max_tokens)
    assert decide(mode="reject") == decide(mode="turns") == Fits(300, output)


@pytest.mark.parametrize(("turns", "fits"), [([200, 92], True), ([200, 93], False)])
def test_the_reserve_is_kept_to_the_token(turns: list[int], fits: bool) -> None:
    """32 + 292 + 60 + a quarter of 512 is the window exactly."""
    decide = partial(plan, window=512, pinned=32, turns=turns, new=60, max_tokens=10**9)
    assert isinstance(decide(mode="reject"), Fits if fits else Reject)
    assert isinstance(decide(mode="turns"), Fits if fits else Truncate)


def test_reject_refuses_what_turns_would_shorten() -> None:
    decide = partial(plan, window=512, pinned=32, turns=[200, 200], new=60, max_tokens=100)
    assert isinstance(decide(mode="turns"), Truncate)
    refused = decide(mode="reject")
    assert isinstance(refused, Reject)
    assert "492 tokens, and 100 are needed" in refused.error().message


@pytest.mark.parametrize("mode", ["reject", "turns"])
@pytest.mark.parametrize(("new", "max_tokens", "output"), [(464, 64, 16), (464, None, 16), (475, 5, 5)])
def test_a_turn_by_itself_is_refused_only_if_it_leaves_less_than_16_tokens(
    mode: Mode, new: int, max_tokens: int | None, output: int
) -> None:
    decide = partial(plan, window=512, pinned=32, turns=[], max_tokens=max_tokens, mode=mode)
    assert decide(new=new) == Fits(32 + new, output)
    refused = decide(new=new + 1)
    assert isinstance(refused, Reject)
    assert refused.needed == output


def test_the_error_has_exact_numbers_and_the_words_that_routers_look_for() -> None:
    decided = plan(window=512, pinned=32, turns=[10], new=600, max_tokens=64, mode="turns")
    assert isinstance(decided, Reject)
    error = decided.error()
    assert error.status == 400
    assert error.body()["error"] == {
        "message": "This model's maximum context length is 512 tokens and the prompt is too long: it has 642 tokens, "
        "and 16 are needed for an answer. Please shorten the messages.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
        "n_prompt_tokens": 642,
        "max_context": 512,
        "max_new_tokens_requested": 64,
        "max_new_tokens_allowed": 0,
        "policy": "turns",
    }


def test_an_inexact_count_says_so() -> None:
    error = too_long(512, "reject", None, {"n_prompt_tokens_at_least": 700}, "prompt")
    assert "at least 700 tokens" in error.message
    assert error.details["n_prompt_tokens_at_least"] == 700
    assert "n_prompt_tokens" not in error.details
    assert error.param == "prompt"


@pytest.mark.parametrize(("max_tokens", "reserve"), [(None, 128), (10, 10), (128, 128), (10**9, 128)])
def test_the_reserve_is_a_quarter_at_most(max_tokens: int | None, reserve: int) -> None:
    assert reserve_for(max_tokens, 512) == reserve
