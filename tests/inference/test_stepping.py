"""Out of memory, a step shrinks until only what can't run alone has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from otelctx.inference import stepping
from otelctx.inference.kvrows import StepResult


class FakeRunner:
    """Feeds at most ``memory`` tokens at once; a row in ``hopeless`` fits never. Logits say what was fed last."""

    vocab = 1

    def __init__(self, memory: int, hopeless: frozenset[int], error: Callable[[], Exception]) -> None:
        self.memory, self.hopeless, self.error = memory, hopeless, error
        self.fed: dict[int, list[int]] = {}

    def step(self, work: Any) -> StepResult:
        if sum(len(ids) for _, ids in work) > self.memory or any(row in self.hopeless for row, _ in work):
            raise self.error()
        for row, ids in work:
            self.fed.setdefault(row, []).extend(ids)
        return StepResult(torch.tensor([[float(ids[-1])] for _, ids in work]), ())


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    memory=st.integers(1, 60),
    hopeless=st.frozensets(st.integers(0, 8), max_size=3),
)
def test_each_item_is_fed_in_order_once_or_fails_alone(
    counts: list[int], memory: int, hopeless: frozenset[int]
) -> None:
    runner: Any = FakeRunner(memory, hopeless, lambda: torch.OutOfMemoryError("full"))
    work = [(row, list(range(100 * row, 100 * row + count))) for row, count in enumerate(counts)]
    stepped = stepping.run(runner, work)
    assert set(stepped.failures) == hopeless & set(range(len(counts)))
    for index, (row, ids) in enumerate(work):
        count = stepped.counts[index]
        assert runner.fed.get(row, []) == ids[:count]
        if index in stepped.failures:
            assert (count, stepped.failures[index]) == (0, "memory")
        else:
            assert 0 < count <= len(ids)
            assert stepped.logits[index].item() == ids[count - 1]


def test_enough_memory_is_one_step() -> None:
    runner: Any = FakeRunner(100, frozenset(), MemoryError)
    assert stepping.run(runner, [(0, [1, 2]), (1, [3])]).counts == [2, 1]


def test_other_errors_are_not_a_lack_of_memory() -> None:
    runner: Any = FakeRunner(0, frozenset(), lambda: RuntimeError("shape mismatch"))
    with pytest.raises(RuntimeError, match="shape"):
        stepping.run(runner, [(0, [1]), (1, [2])])
