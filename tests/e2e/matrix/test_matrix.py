"""One middleware, unchanged, around every framework under every server: the same spans and metrics on each way out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

COMPLAINTS = (
    "different Context",  # a token was used in another task
    "Failed to detach",
    "ended span",
    "never awaited",
    "Invalid type",
    "Overriding of current",
    "instrument with name",  # made twice
)


def test_an_exit_path(cell: Any, mode: str, app: str, case: str, cases: Any) -> None:
    cases[case](cell)


def test_nothing_of_a_request_is_held_when_all_are_over(processes: Any, process: str) -> None:
    """Whatever way they went out: no table, task or frame keeps one of them."""
    assert processes(process).alive() == {}


def test_no_server_has_heard_a_complaint_of_us(processes: Any, process: str) -> None:
    log: list[str] = processes(process).log.read_text(errors="replace").splitlines()
    assert [line for line in log if any(words in line for words in COMPLAINTS)] == []
    # The last frame of each traceback: where it was raised.
    frame, raised_by_us = "", []
    for line in log:
        if line.startswith("  File "):
            frame = line
        elif not line.startswith(" "):
            # Granian's futures have no frame of their own, and it logs the cancellation that was asked for.
            raised_by_us += [frame + line] if "/otelctx/" in frame and "CancelledError" not in line else []
            frame = ""
    assert raised_by_us == []


def test_no_cell_leaves_out_a_case_without_a_reason(
    collected: Counter[tuple[str, str]], tables: Any, cases: Any
) -> None:
    for mode in tables.MODES:
        for app in tables.APPS:
            reasons = [tables.cannot(mode, app, case) for case in cases]
            assert collected[mode, app] == reasons.count(None), (mode, app)
            assert all(reason is None or len(reason) > 20 for reason in reasons)
    assert sum(collected.values()) > 0


def test_every_reason_is_one_for_a_cell_and_a_case_that_there_are(tables: Any, cases: Any) -> None:
    for mode, app, case in tables.CANNOT:
        assert mode in tables.MODES or mode == "*"
        assert app in tables.APPS or app == "*"
        assert case in cases
