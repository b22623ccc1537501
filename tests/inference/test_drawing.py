"""A row whose token can't be chosen fails alone; the others get the tokens that they would have got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from otelctx.inference.drawing import draw
from otelctx.inference.faults import Broken
from otelctx.inference.sampling import Params, RowState, Sampler


class Picky(Sampler):
    """Raises for rows with one of these seeds, after it has drawn for those before them."""

    def __init__(self, seeds: Sequence[int], error: Exception) -> None:
        self._seeds = seeds
        self._error = error

    def sample(self, logits: torch.Tensor, rows: Sequence[RowState]) -> list[int]:
        for row in rows:
            row.number()
            if row.params.seed in self._seeds:
                raise self._error
        return super().sample(logits, rows)


def states(count: int, **params: Any) -> list[RowState]:
    return [RowState(Params(seed=seed, **params)) for seed in range(count)]


@given(count=st.integers(2, 6), bad=st.data(), temperature=st.sampled_from([0.0, 0.7, 1.0]))
def test_the_others_draw_what_they_would_have_drawn(count: int, bad: st.DataObject, temperature: float) -> None:
    wrong = bad.draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    logits = torch.randn(3, count, 50, generator=torch.Generator().manual_seed(3))
    params: dict[str, Any] = {"temperature": temperature, "presence_penalty": 0.5}
    expected, rows = states(count, **params), states(count, **params)
    sampler = Picky(sorted(wrong), ValueError("no such distribution"))
    for step in range(3):
        reference = Sampler().sample(logits[step], expected)
        tokens, failures = draw(sampler, logits[step], rows)
        assert failures == dict.fromkeys(wrong, "error")
        assert [t for n, t in enumerate(tokens) if n not in wrong] == [
            t for n, t in enumerate(reference) if n not in wrong
        ]


def test_a_lack_of_memory_for_all_at_once_is_got_over_row_by_row() -> None:
    class Small(Sampler):
        def sample(self, logits: torch.Tensor, rows: Sequence[RowState]) -> list[int]:
            if len(rows) > 1:
                raise torch.OutOfMemoryError("full")
            return super().sample(logits, rows)

    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(3))
    assert draw(Small(), logits, states(3)) == (Sampler().sample(logits, states(3)), {})


def test_a_single_row_fails_alone_too() -> None:
    assert draw(Picky([0], MemoryError()), torch.zeros(1, 5), states(1)) == ([0], {0: "memory"})


@pytest.mark.parametrize(
    ("error", "poisoned"), [(ValueError("broken"), False), (torch.AcceleratorError("CUDA error: misaligned"), True)]
)
def test_when_no_row_can_be_sampled_the_engine_is_to_blame(error: Exception, poisoned: bool) -> None:
    with pytest.raises(Broken) as caught:
        draw(Picky([0, 1], error), torch.zeros(2, 5), states(2))
    assert caught.value.poisoned is poisoned
