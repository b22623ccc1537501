"""Turns that wait for a row: which is next, and how they end without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.errors import Overloaded

Make = Callable[..., Any]


async def test_a_higher_priority_is_served_first_and_who_runs_is_left_alone(
    make_engine: Make, ask: Make, make_gate: Make, until: Make
) -> None:
    engine = make_engine(rows=1)
    await engine.start()
    gate = make_gate(engine)
    order: list[str] = []
    running = asyncio.create_task(ask(engine, "one", max_tokens=9))
    await gate.allow(1)
    running.add_done_callback(lambda _: order.append("running"))
    for name, priority in (("first", 0), ("low", -1), ("second", 0), ("high", 3)):
        # Admitted between two steps, each before the next comes.
        task = asyncio.create_task(ask(engine, "x", max_tokens=2, priority=priority))
        task.add_done_callback(lambda _, name=name: order.append(name))
        waiting = len(engine._turns) + 1
        await until(lambda waiting=waiting: len(engine._turns) == waiting)
        await gate.allow(1)
        await until(lambda waiting=waiting: engine.stats().queued == waiting - 1)
    gate.open()
    await until(lambda: len(order) == 5)
    assert order == ["running", "high", "first", "second", "low"]


async def test_a_deadline_passes_in_the_queue_too(make_engine: Make, ask: Make, make_gate: Make, until: Make) -> None:
    """It ends with the next step, though the row is still taken, and with an empty answer that its session keeps."""
    now = [0.0]
    engine = make_engine(rows=1, clock=lambda: now[0])
    await engine.start()
    gate = make_gate(engine)
    running = asyncio.create_task(ask(engine, "one", max_tokens=30))
    await gate.allow(1)
    waiting = asyncio.create_task(ask(engine, "two", session="s", max_tokens=5, deadline=10.0))
    await until(lambda: len(engine._turns) == 2)
    await gate.allow(1)
    assert engine.stats().queued == 1
    now[0] = 10.0
    await gate.allow(2)  # the step that had begun, and the one that it is seen before
    assert engine.stats().queued == 0
    while not waiting.done():  # its reader takes the answer, and it is settled between two steps
        await gate.allow(1)
    answer = await waiting
    assert not running.done()
    assert (answer.text, answer.result.limit, answer.result.outcome) == ("", "deadline", "deadline")
    assert answer.result.usage.completion_tokens == 0
    assert answer.result.time_to_first_token is None
    gate.open()
    assert (await running).result.usage.completion_tokens == 30
    assert (await engine.session_state("s"))["turns"] == 1


async def test_a_full_queue_says_when_to_come_back_from_how_long_turns_take(
    make_engine: Make, ask: Make, make_gate: Make, until: Make
) -> None:
    now = [0.0]
    engine = make_engine(rows=1, queue=1, clock=lambda: now[0])
    await engine.start()
    gate = make_gate(engine)
    first = asyncio.create_task(ask(engine, "one", max_tokens=2))
    await gate.allow(1)
    now[0] = 8.0
    gate.open()
    await first
    running = [asyncio.create_task(ask(engine, "x", max_tokens=400)) for _ in range(2)]
    await until(lambda: engine.stats().queued == 1)
    with pytest.raises(Overloaded) as caught:
        await ask(engine, "y")
    assert caught.value.retry_after == 1 + 8.0
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    await until(lambda: not engine._turns)


async def test_running_turns_get_their_tokens_side_by_side(make_engine: Make, ask: Make, make_gate: Make) -> None:
    """Whatever the lengths of their prompts: once all decode, each step has a token of each."""
    engine = make_engine(rows=3)
    await engine.start()
    gate = make_gate(engine)
    gate.open()
    texts = ("a", "the hill " * 9, "the sea " * 30)
    await asyncio.gather(*(ask(engine, text, max_tokens=60) for text in texts))
    together = [step for step in gate.steps if len(step) == 3 and all(count == 1 for _, count in step)]
    assert len(together) >= 50
