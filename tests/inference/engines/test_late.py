"""Turns that are late: over their own deadline, or over that of the lease of their session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.errors import SessionDeadline
from otelctx.inference.sampling import Params
from otelctx.inference.turn import Message, TurnRequest
from otelctx.testing import Captured

GREEDY = Params(temperature=0)
Make = Callable[..., Any]


@pytest.mark.parametrize("waits", ["queue", "prompt", "answer", "reader"])
async def test_a_turn_that_is_overdue_loses_its_session_and_ends(
    make_engine: Make,
    ask: Make,
    make_gate: Make,
    until: Make,
    window_of: Make,
    otelctx_capture: Captured,
    waits: str,
) -> None:
    """Wherever it hangs: its row is free, its session is as before and takes the next turn, its reader is told."""
    now = 0.0
    engine = make_engine(clock=lambda: now, rows=1)
    await ask(engine, "hello", session="s")
    before = window_of(engine, "s")
    gate = make_gate(engine)
    ahead = [asyncio.create_task(ask(engine, "ahead", max_tokens=9))] if waits == "queue" else []
    if ahead:
        await gate.allow(1)
    more = "more " * (90 if waits == "prompt" else 1)
    asked = TurnRequest((Message("user", more),), "s", max_tokens=6, params=GREEDY)
    admission = asyncio.create_task(engine.admit(asked))
    await asyncio.sleep(0)
    if ahead:
        await gate.allow(1)  # commands are taken between steps
    turn = await admission
    if waits == "reader":
        gate.open()
        await until(lambda: engine.stats().active == 0)
    elif waits == "answer":
        await gate.allow(3)
    await asyncio.sleep(0.01)
    following = asyncio.create_task(ask(engine, "again", session="s", max_tokens=9))
    await asyncio.sleep(0)
    now = 1000.0
    engine._store.sweep()
    engine._store.sweep()
    gate.open()
    with pytest.raises(SessionDeadline) as caught:
        async for _ in turn:
            pass
    assert (caught.value.status, caught.value.code) == (409, "session_busy")
    answer = await following
    assert answer.result.window.version == 2
    assert window_of(engine, "s")[: len(before)] == before
    for task in ahead:
        await task
    ended = [s.attributes["otelctx.outcome"] for s in otelctx_capture.spans if s.name == "chat tiny"]
    assert sorted(ended) == sorted(["length", "deadline", "length"] + ["length"] * len(ahead))


async def test_a_deadline_bounds_the_wait_for_a_session(
    make_engine: Make, ask: Make, make_gate: Make, otelctx_capture: Captured
) -> None:
    """The turn that can't begin in time is told that its session is busy; the one that runs goes on."""
    engine = make_engine()
    await engine.start()
    gate = make_gate(engine)
    running = asyncio.create_task(ask(engine, "hello", session="s", max_tokens=5))
    await gate.allow(1)
    with pytest.raises(SessionDeadline) as caught:
        await ask(engine, "more", session="s", deadline=0.02)
    assert caught.value.status == 409
    gate.open()
    assert (await running).result.usage.completion_tokens == 5
    assert otelctx_capture.metric("otelctx.requests", otelctx__outcome="deadline").value == 1


@pytest.mark.parametrize("steps", [0, 1, 4])
async def test_a_deadline_ends_the_answer_where_it_is_and_keeps_it(
    make_engine: Make, ask: Make, make_gate: Make, window_of: Make, steps: int
) -> None:
    """In the queue (no text), after the first token, and later: what was shown is what the session has."""
    now = 0.0
    engine = make_engine(clock=lambda: now, rows=1)
    await ask(engine, "hello", session="s")
    before = window_of(engine, "s")
    gate = make_gate(engine)
    ahead = asyncio.create_task(ask(engine, "ahead", max_tokens=3))
    await gate.allow(1)
    asked = TurnRequest((Message("user", "more"),), "s", max_tokens=50, params=GREEDY, deadline=9.0)
    admission = asyncio.create_task(engine.admit(asked))
    await asyncio.sleep(0)
    await gate.allow(1)  # commands are taken between steps
    turn = await admission
    if steps:
        await gate.allow(1 + steps)
    now = 9.0
    gate.open()
    chunks = [chunk async for chunk in turn]
    await ahead
    result = chunks[-1].result
    assert (result.finish_reason, result.limit, result.outcome) == ("length", "deadline", "deadline")
    assert result.usage.completion_tokens <= steps + 1
    assert bool("".join(chunk.text for chunk in chunks)) == bool(steps)
    kept = window_of(engine, "s")
    assert len(kept) == result.usage.prompt_tokens + result.usage.completion_tokens > len(before)
    assert (await ask(engine, "again", session="s")).result.window.version == 3
