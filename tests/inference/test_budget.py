from __future__ import annotations

import pytest

from otelctx.errors import BudgetExhausted
from otelctx.inference.budget import Ledger, kv_bytes


def test_kv_is_linear_in_tokens() -> None:
    """Llama-3.1-8B in bf16: 128 KiB a token."""
    one = kv_bytes(layers=32, kv_heads=8, head_dim=128, element=2, tokens=1)
    assert one == 128 * 1024
    assert kv_bytes(layers=32, kv_heads=8, head_dim=128, element=2, tokens=8192) == 8192 * one


def test_rows_are_handed_out_once_and_come_back() -> None:
    ledger = Ledger(2, 100)
    first = ledger.reserve()
    second = ledger.reserve()
    assert {first, second} == {0, 1}
    with pytest.raises(BudgetExhausted) as caught:
        ledger.reserve()
    assert caught.value.status == 503
    assert caught.value.headers() == [("retry-after", "1")]
    ledger.release(second)
    assert ledger.reserve(second) == second
    assert ledger.busy == 2


def test_a_particular_row_must_be_free() -> None:
    ledger = Ledger(2, 100)
    ledger.reserve(1)
    with pytest.raises(BudgetExhausted):
        ledger.reserve(1)
    assert ledger.free == [0]


@pytest.mark.parametrize("row", [0, 7, -1])
def test_giving_back_what_is_not_taken_is_a_mistake(row: int) -> None:
    with pytest.raises(ValueError, match="not in use"):
        Ledger(2, 100).release(row)


def test_a_ledger_has_rows() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Ledger(0, 100)


def test_what_turns_may_fill_is_counted_while_they_run_and_no_more_than_a_row_has() -> None:
    ledger = Ledger(2, 100)
    assert (ledger.reserved, ledger.budget) == (0, 200)
    first = ledger.reserve(tokens=30)
    second = ledger.reserve(tokens=10**9)
    assert ledger.reserved == 130
    ledger.release(first)
    assert ledger.reserved == 100
    ledger.release(second)
    assert ledger.reserved == 0
