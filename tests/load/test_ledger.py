"""Each request has one fate, and what a client is told has one outcome in the worker's counter."""

from __future__ import annotations

import pytest

from otelctx import errors
from scripts.soak.ledger import BROKEN, FATES, GONE, Ledger, outcome_of_answer, outcome_of_error


def test_a_second_fate_is_noted_and_the_first_one_stays() -> None:
    ledger = Ledger()
    asked = ledger.open("whole", "s")
    ledger.close(asked, "length", text="so")
    assert ledger.twice == []
    ledger.close(asked, GONE)
    assert (asked.fate, asked.text) == ("length", "so")
    assert len(ledger.twice) == 1


def test_what_is_not_closed_or_broken_is_in_the_books() -> None:
    ledger = Ledger()
    ledger.open("stream", None)
    ledger.close(ledger.open("whole", None), BROKEN, detail="reset")
    ledger.close(ledger.open("whole", None), "shed")
    books = ledger.books()
    assert [len(books.unsettled), len(books.broken)] == [1, 1]
    assert dict(books.certain) == {"shed": 1}
    assert dict(books.kinds) == {"stream": 1, "whole": 2}


def test_a_word_that_is_no_fate_is_refused() -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="lost"):
        ledger.close(ledger.open("whole", None), "lost")


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [(None, "completed"), ("output", "length"), ("context", "length"), ("deadline", "deadline"), ("memory", "oom")],
)
def test_an_answer_has_the_outcome_that_its_limit_means(limit: str | None, outcome: str) -> None:
    assert outcome_of_answer(limit) == outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.TokenLimitExceeded("x"), "rejected"),
        (errors.SessionBusy("x"), "rejected"),
        (errors.Overloaded("x"), "shed"),
        (errors.BreakerOpen("x"), "shed"),
        (errors.StreamRequired("x"), "shed"),
        (errors.BudgetExhausted("x"), "oom"),
        (errors.ArenaExhausted("x"), "oom"),
        (errors.SessionNotFound("x"), BROKEN),
        (errors.InvalidRequest("x"), BROKEN),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_error_has_the_outcome_that_the_worker_counts(error: errors.OtelctxError, outcome: str) -> None:
    """The same as ``outcome_of``; what no request of the load may be answered with is broken."""
    assert outcome_of_error(error.status, error.code) == outcome
    if outcome != BROKEN:
        assert outcome_of_error(None, error.code) == outcome
        from otelctx.inference.tracing import outcome_of

        assert outcome_of(error) == outcome
    assert outcome in FATES


def test_an_unknown_error_is_broken_whenever_it_comes() -> None:
    assert outcome_of_error(500, "internal_error") == outcome_of_error(None, "engine_failed") == BROKEN


def test_a_session_that_stayed_busy_past_the_requests_own_deadline_is_the_deadlines_outcome() -> None:
    """Both errors look alike to the client, and the worker counts them apart."""
    from otelctx.inference.tracing import outcome_of

    late, busy = errors.SessionDeadline("x"), errors.SessionBusy("x")
    assert (late.status, late.code) == (busy.status, busy.code)
    assert outcome_of_error(late.status, late.code, timed=True) == outcome_of(late) == "deadline"
    assert outcome_of_error(busy.status, busy.code, timed=False) == outcome_of(busy) == "rejected"
    assert outcome_of_error(503, "overloaded", timed=True) == "shed"
