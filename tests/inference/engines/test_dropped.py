"""A turn that was admitted and whose handle is gone before its last chunk was taken: nobody can read it any more."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.inference.sampling import Params
from otelctx.inference.turn import Message, TurnRequest
from otelctx.testing import Captured

GREEDY = Params(temperature=0)
Make = Callable[..., Any]


def request(session: str | None, max_tokens: int) -> TurnRequest:
    return TurnRequest((Message("user", "more"),), session, max_tokens=max_tokens, params=GREEDY)


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("at", ["running", "computed", "begun"])
async def test_a_turn_that_is_dropped_is_taken_back(
    make_engine: Make, ask: Make, until: Make, otelctx_capture: Captured, session: str | None, at: str
) -> None:
    """While it is computed, once all is computed, or after the first chunk: row, lease and entry are free again."""
    engine = make_engine()
    await ask(engine, "hello", session="s", max_tokens=3)
    before = await engine.session_state("s")
    turn = await engine.admit(request(session, 5 if at == "computed" else 400))
    assert len(engine._turns) == 1
    if at == "computed":
        await until(lambda: engine.stats().active == 0)
    if at == "begun":
        await anext(turn)
    del turn
    await until(lambda: not engine._turns)
    assert otelctx_capture.metric("otelctx.requests", otelctx__outcome="cancelled").value == 1
    assert (engine.stats().rows_busy, engine.stats().leases, engine._core._jobs) == (0, 0, {})
    assert (await engine.session_state("s")) | {"idle_seconds": 0, "kv": {}} == before | {"idle_seconds": 0, "kv": {}}
    assert (await ask(engine, "again", session="s", max_tokens=3)).result.window.version == 2


async def test_a_turn_whose_admission_was_never_awaited_to_its_end_is_taken_back(
    make_engine: Make, until: Make
) -> None:
    """The result of a task that nobody asks for is dropped with the task."""
    engine = make_engine()
    task = asyncio.create_task(engine.admit(request(None, 400)))
    await until(task.done)
    assert len(engine._turns) == 1
    del task
    await until(lambda: not engine._turns)


async def test_a_circle_around_a_turn_goes_with_the_collector(make_engine: Make, until: Make) -> None:
    """Which runs in whatever thread it is due in."""
    engine = make_engine()
    holder: list[Any] = [await engine.admit(request(None, 400))]
    holder.append(holder)
    del holder
    await asyncio.to_thread(gc.collect)
    await until(lambda: not engine._turns)


async def test_a_turn_in_the_hands_of_its_reader_stays(make_engine: Make) -> None:
    """Neither its chunks nor a coroutine that waits for the next one need the name under which it was admitted."""
    engine = make_engine()
    chunks = (await engine.admit(request(None, 9))).chunks()
    gc.collect()
    waiting = chunks.__anext__()
    del chunks
    assert (await waiting).text
    chunks = (await engine.admit(request(None, 9))).chunks()
    gc.collect()
    last = [chunk async for chunk in chunks][-1]
    assert last.result is not None
    assert last.result.outcome == "length"


async def test_a_closed_loop_is_no_reason_to_complain(make_engine: Make) -> None:
    """Nobody is left to take the turn back, and nothing to be taken back from."""
    engine = make_engine()
    turn = await engine.admit(request(None, 9))
    turn._turn._loop = closed = asyncio.new_event_loop()
    closed.close()
    inner = turn._turn
    del turn
    await inner.aclose()
