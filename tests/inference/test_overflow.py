from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.inference.overflow import MIN_OUTPUT, Fits, Mode, Reject, Truncate, plan, reserve_for

COUNTS = st.integers(0, 600)


@given(
    window=st.integers(64, 1024),
    pinned=COUNTS,
    turns=st.lists(st.integers(1, 200), max_size=12),
    new=st.integers(1, 600),
    max_tokens=st.none() | st.integers(1, 4096),
    mode=st.sampled_from(["reject", "turns"]),
)
def test_whatever_is_decided_fits_and_accounts_for_every_token(
    window: int, pinned: int, turns: list[int], new: int, max_tokens: int | None, mode: Mode
) -> None:
    rendered = pinned + sum(turns) + new
    decided = plan(window=window, pinned=pinned, turns=turns, new=new, max_tokens=max_tokens, mode=mode)
    match decided:
        case Fits(prompt, output):
            assert prompt == rendered
            assert prompt + output <= window
            assert 0 < output <= (max_tokens or window)
        case Truncate():
            assert mode == "turns"
            assert decided.before == rendered == decided.after + decided.dropped
            assert decided.dropped == sum(turns[: decided.turns])
            assert decided.turns > 0
            assert decided.after + min(MIN_OUTPUT, reserve_for(max_tokens, window)) <= window
            assert 0 < decided.output <= window - decided.after
        case Reject(prompt, limit, requested, _, _):
            assert (prompt, limit, requested) == (rendered, window, max_tokens)
            if mode == "turns":
                assert pinned + new + min(MIN_OUTPUT, reserve_for(max_tokens, window)) > window


def test_a_truncation_goes_down_to_three_quarters_so_that_the_next_turn_fits() -> None:
    decided = plan(window=512, pinned=32, turns=[60] * 7, new=40, max_tokens=64, mode="turns")
    assert isinstance(decided, Truncate)
    assert (decided.before, decided.dropped, decided.after, decided.turns) == (492, 120, 372, 2)
    later = plan(window=512, pinned=32, turns=[60] * 5 + [104], new=40, max_tokens=64, mode="turns")
    assert isinstance(later, Truncate | Fits)


def test_a_huge_max_tokens_never_makes_a_prompt_too_long() -> None:
    decided = plan(window=512, pinned=0, turns=[], new=300, max_tokens=10**9, mode="reject")
    assert decided == Fits(300, 212)


def test_reject_refuses_what_turns_would_shorten() -> None:
    args = {"window": 512, "pinned": 32, "turns": [200, 200], "new": 60, "max_tokens": 100}
    assert isinstance(plan(**args, mode="turns"), Truncate)  # type: ignore[arg-type]
    assert isinstance(plan(**args, mode="reject"), Reject)  # type: ignore[arg-type]


def test_only_a_turn_that_is_too_long_by_itself_is_refused_by_turns() -> None:
    assert isinstance(plan(window=512, pinned=32, turns=[], new=465, max_tokens=64, mode="turns"), Reject)
    assert plan(window=512, pinned=32, turns=[], new=464, max_tokens=64, mode="turns") == Fits(496, 16)


def test_the_error_has_exact_numbers_and_the_words_that_routers_look_for() -> None:
    decided = plan(window=512, pinned=32, turns=[10], new=600, max_tokens=64, mode="turns")
    assert isinstance(decided, Reject)
    error = decided.error()
    assert error.status == 400
    body = error.body()["error"]
    assert body["code"] == "context_length_exceeded"
    assert body["type"] == "invalid_request_error"
    assert body["param"] == "messages"
    assert "maximum context length is 512" in body["message"]
    assert (body["n_prompt_tokens"], body["max_context"], body["policy"]) == (642, 512, "turns")
    assert (body["max_new_tokens_requested"], body["max_new_tokens_allowed"]) == (64, 0)


@pytest.mark.parametrize(("max_tokens", "reserve"), [(None, 128), (10, 10), (128, 128), (10**9, 128)])
def test_the_reserve_is_a_quarter_at_most(max_tokens: int | None, reserve: int) -> None:
    assert reserve_for(max_tokens, 512) == reserve
