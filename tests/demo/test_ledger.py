"""The books must agree, and a figure that was tampered with must show."""

from __future__ import annotations

from otelctx.demo.ledger import Ledger


def books(tamper: str | None = None) -> Ledger:
    ledger = Ledger(tamper)
    ledger.compare("turn 1", "output tokens", 7, 7)
    ledger.compare("turn 1", "kind of frame", "full", "full")
    return ledger


def test_books_that_agree_say_nothing() -> None:
    assert books().verdict() == []


def test_one_token_too_many_is_found() -> None:
    assert books("tokens").verdict() == ["turn 1: output tokens: counted 8, seen 7"]


def test_a_figure_of_another_type_or_none_does_not_agree() -> None:
    ledger = Ledger()
    ledger.compare("turn 1", "reused", 1, True)
    ledger.compare("turn 1", "window", 5, None)
    assert len(ledger.verdict()) == 2


def test_a_step_that_failed_is_told() -> None:
    ledger = books()
    ledger.require("too long", "status 400", False)
    ledger.require("too long", "numbers", True)
    assert ledger.verdict() == ["too long: status 400"]


def test_tampering_with_nothing_is_a_failure_too() -> None:
    """A self-test that alters no figure would prove nothing."""
    assert books("bananas").verdict() == ["nothing was counted that is called 'bananas'"]
