"""A step that fails shrinks until only what can't run alone has failed."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from otelctx.inference.ceiling import STEADY
from otelctx.inference.faults import Broken
from otelctx.inference.kvrows import StepResult
from otelctx.inference.stepping import Stepper


def no_memory() -> Exception:
    return torch.OutOfMemoryError("full")


class FakeRunner:
    """Feeds at most ``memory`` tokens at once; a row in ``hopeless`` fits never, one in ``wrong`` raises, and if
    ``broken``, everything does. Logits say what was fed last."""

    vocab = 1

    def __init__(
        self,
        memory: int = 1000,
        hopeless: frozenset[int] = frozenset(),
        error: Callable[[], Exception] = no_memory,
        wrong: frozenset[int] = frozenset(),
        broken: bool = False,
    ) -> None:
        self.memory, self.hopeless, self.error, self.wrong, self.broken = memory, hopeless, error, wrong, broken
        self.fed: dict[int, list[int]] = {}
        self.sizes: list[int] = []
        self.cleared: list[int] = []
        self.freed = 0

    def step(self, work: Any) -> StepResult:
        size = sum(len(ids) for _, ids in work)
        self.sizes.append(size)
        if self.broken or any(row in self.wrong and tuple(ids) != (0,) for row, ids in work):
            raise ValueError("shape mismatch")
        if size > self.memory or any(row in self.hopeless for row, _ in work):
            raise self.error()
        for row, ids in work:
            self.fed.setdefault(row, []).extend(ids)
        return StepResult(torch.tensor([[float(ids[-1])] for _, ids in work]), ())

    def clear(self, row: int) -> None:
        self.fed.pop(row, None)
        self.cleared.append(row)

    def free_unused(self) -> None:
        self.freed += 1


def work_of(counts: list[int]) -> list[tuple[int, list[int]]]:
    return [(row, list(range(100 * row + 1, 100 * row + 1 + count))) for row, count in enumerate(counts)]


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    memory=st.integers(1, 60),
    hopeless=st.frozensets(st.integers(0, 8), max_size=3),
    wrong=st.frozensets(st.integers(0, 8), max_size=3),
)
def test_each_item_is_fed_in_order_once_or_fails_alone(
    counts: list[int], memory: int, hopeless: frozenset[int], wrong: frozenset[int]
) -> None:
    runner: Any = FakeRunner(memory, hopeless, wrong=wrong)
    work = work_of(counts)
    stepped = Stepper(runner).run(work)
    failing = dict.fromkeys(wrong, "error") | dict.fromkeys(hopeless - wrong, "memory")
    assert stepped.failures == {row: why for row, why in failing.items() if row < len(counts)}
    for index, (row, ids) in enumerate(work):
        count = stepped.counts[index]
        assert runner.fed.get(row, []) == ids[:count]
        if index in stepped.failures:
            assert count == 0
        else:
            assert 0 < count <= len(ids)
            assert stepped.logits[index].item() == ids[count - 1]


def test_enough_memory_is_one_step() -> None:
    runner: Any = FakeRunner(100)
    assert Stepper(runner).run([(0, [1, 2]), (1, [3])]).counts == [2, 1]
    assert runner.sizes == [3]


def test_after_a_lack_of_memory_less_is_tried_and_later_more_again() -> None:
    """A lack that passes is forgotten: the chunk is what it was."""
    runner: Any = FakeRunner(40)
    stepper = Stepper(runner)
    assert stepper.run([(0, [1] * 100)]).counts == [25]
    runner.memory = 1000
    runner.sizes.clear()
    for _ in range(2 * STEADY):
        stepper.run([(0, [1] * 100)])
    assert runner.sizes == [25] * (STEADY - 1) + [50] * STEADY + [100]


def test_unused_memory_is_given_back_before_the_next_try() -> None:
    runner: Any = FakeRunner(1)
    Stepper(runner).run([(0, [1, 2]), (1, [1])])
    assert runner.freed == 2


def test_before_a_row_fails_for_memory_what_hangs_together_in_a_circle_is_let_go() -> None:
    """Nothing else frees it at that moment, and tensors may hang on it."""

    class Circle:
        def __init__(self) -> None:
            self.itself = self

    gc.disable()
    try:
        garbage = weakref.ref(Circle())
        runner: Any = FakeRunner()
        step = runner.step

        def short_of_memory(work: Any) -> StepResult:
            if garbage() is not None:
                raise no_memory()
            fed: StepResult = step(work)
            return fed

        runner.step = short_of_memory
        assert Stepper(runner).run([(0, [1])]).failures == {}
    finally:
        gc.enable()


def test_a_row_that_raises_is_emptied_and_the_others_go_on() -> None:
    runner: Any = FakeRunner(wrong=frozenset({2}))
    stepped = Stepper(runner).run([(row, [7]) for row in range(5)])
    assert (stepped.failures, stepped.counts) == ({2: "error"}, [1, 1, 0, 1, 1])
    assert runner.cleared == [2]


@pytest.mark.parametrize("rows", [1, 3])
def test_if_only_the_requests_are_wrong_the_engine_is_not(rows: int) -> None:
    """Nothing of the step ran, but a token in an emptied row does."""
    runner: Any = FakeRunner(wrong=frozenset(range(rows)))
    stepped = Stepper(runner).run([(row, [7]) for row in range(rows)])
    assert stepped.failures == dict.fromkeys(range(rows), "error")
    assert runner.fed == {}


@pytest.mark.parametrize("rows", [1, 3])
def test_if_nothing_runs_at_all_the_engine_is_broken(rows: int) -> None:
    runner: Any = FakeRunner(broken=True)
    with pytest.raises(Broken, match="shape mismatch") as caught:
        Stepper(runner).run([(row, [7]) for row in range(rows)])
    assert not caught.value.poisoned


def test_a_poisoned_device_is_not_tried_again() -> None:
    runner: Any = FakeRunner(0, error=lambda: torch.AcceleratorError("CUDA error: device-side assert triggered"))
    with pytest.raises(Broken, match="device-side assert") as caught:
        Stepper(runner).run([(0, [1, 2]), (1, [2])])
    assert caught.value.poisoned
    assert runner.sizes == [3]
    assert runner.cleared == []


@pytest.mark.parametrize(
    "error", [no_memory, lambda: ValueError("shape"), lambda: torch.AcceleratorError("CUDA error: misaligned address")]
)
def test_what_a_failed_forward_held_is_freed(error: Callable[[], Exception], caplog: pytest.LogCaptureFixture) -> None:
    """Neither a traceback nor a log record that somebody keeps holds a tensor of it, also if the engine is broken."""
    held: list[weakref.ref[torch.Tensor]] = []

    class Holding(FakeRunner):
        def step(self, work: Any) -> StepResult:
            activations = torch.zeros(1000)
            held.append(weakref.ref(activations))
            raise error()

    runner: Any = Holding()
    gc.disable()
    try:
        with caplog.at_level(logging.DEBUG), suppress(Broken):
            Stepper(runner).run([(0, [1, 2]), (1, [2])])
        assert held
        assert [tensor() for tensor in held] == [None] * len(held)
    finally:
        gc.enable()
