"""One middleware, unchanged, around every framework under every server: the same spans and metrics on each way out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


def test_an_exit_path(cell: Any, mode: str, app: str, case: str, cases: Any) -> None:
    cases[case](cell)


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
