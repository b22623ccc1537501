"""One request's failure is its own; the engine's own failure is told to everybody and to the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from otelctx.errors import BudgetExhausted, OtelctxError, Overloaded
from otelctx.inference.kvrows import StepResult

Make = Callable[..., Any]


def spoil(engine: Any, change: Callable[[Any, Callable[[Any], Any]], Any]) -> None:
    """Put ``change(work, step)`` in front of the runner's step."""
    step = engine._runner.step
    engine._runner.step = lambda work: change(work, step)


async def test_a_row_without_finite_logits_fails_alone(make_engine: Make, ask: Make, window_of: Make) -> None:
    engine = make_engine()
    await ask(engine, "hello", session="s")
    before = window_of(engine, "s")

    def bad_after_a_while(work: Any, step: Any) -> StepResult:
        result = step(work)
        bad = tuple(row for row, _ in work if engine._runner.kv.lengths[row] == 150)
        for row in bad:
            engine._runner.kv.zero(row)
        return StepResult(result.logits, bad)

    spoil(engine, bad_after_a_while)
    good = asyncio.create_task(ask(engine, "other", max_tokens=30))
    with pytest.raises(OtelctxError) as caught:
        await ask(engine, "more", session="s", max_tokens=300)
    assert caught.value.code == "non_finite_logits"
    assert (await good).result.usage.completion_tokens == 30
    assert engine.ready
    assert window_of(engine, "s") == before
    assert (await ask(engine, "again", session="s", max_tokens=9)).result.usage.completion_tokens == 9


async def test_a_lack_of_memory_is_met_by_smaller_steps(make_engine: Make, ask: Make) -> None:
    """More than 100 tokens at once are too much: prompts are prefilled in smaller pieces, with the same answer."""
    engine = make_engine(window=1024)
    sizes: list[int] = []

    def small_only(work: Any, step: Any) -> Any:
        size = sum(len(ids) for _, ids in work)
        if size > 100:
            raise torch.OutOfMemoryError("out of memory")
        sizes.append(size)
        return step(work)

    expected = await ask(make_engine(window=1024), "long " * 100)
    spoil(engine, small_only)
    answers = await asyncio.gather(*(ask(engine, "long " * 100) for _ in range(3)))
    assert [answer.text for answer in answers] == [expected.text] * 3
    assert max(sizes) > 50


async def test_only_what_cannot_run_alone_is_refused_for_want_of_memory(make_engine: Make, ask: Make) -> None:
    engine = make_engine(window=1024)

    def no_room_for_long_rows(work: Any, step: Any) -> Any:
        if any(engine._runner.kv.lengths[row] + len(ids) > 200 for row, ids in work):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return step(work)

    spoil(engine, no_room_for_long_rows)
    good = [asyncio.create_task(ask(engine, f"short {n}", max_tokens=40)) for n in range(3)]
    with pytest.raises(BudgetExhausted) as caught:
        await ask(engine, "long " * 100, session="s")
    assert caught.value.status == 503
    assert [answer.result.usage.completion_tokens for answer in await asyncio.gather(*good)] == [40] * 3
    assert engine.ready
    assert engine.stats().sessions == 0


async def test_an_engine_that_went_wrong_says_so_and_takes_no_more(make_engine: Make, ask: Make, until: Make) -> None:
    """Running and waiting requests fail at once, sessions are as before, and readiness is off."""
    engine = make_engine(rows=2)
    await ask(engine, "hello", session="s")
    state = await engine.session_state("s")
    calls = 0

    def broken(work: Any, step: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise ValueError("a device-side assertion")
        return step(work)

    spoil(engine, broken)
    asked = [ask(engine, "more", session=session, max_tokens=50) for session in ("s", None, "t", None)]
    for error in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(error, OtelctxError)
        assert error.code == "engine_failed"
    assert not engine.ready
    with pytest.raises(Overloaded):
        await ask(engine, "more")
    assert (await engine.session_state("s")) | {"idle_seconds": 0} == state | {"idle_seconds": 0}


async def test_a_lease_that_was_taken_back_does_not_harm_the_engine(
    make_engine: Make, ask: Make, make_gate: Make
) -> None:
    now = 0.0
    engine = make_engine(clock=lambda: now)
    await ask(engine, "hello", session="s")
    gate = make_gate(engine)
    task = asyncio.create_task(ask(engine, "more", session="s", max_tokens=3))
    await gate.allow(1)
    now = 1000.0
    engine._store.sweep()
    gate.open()
    with pytest.raises(OtelctxError):
        await task
    assert engine.ready
    assert (await ask(engine, "again", session="s")).result.window.version == 2
