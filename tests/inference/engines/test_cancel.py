"""A turn whose reader goes before its last chunk never happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from otelctx.errors import Overloaded
from otelctx.inference.sampling import Params
from otelctx.inference.turn import Message, TurnRequest

Make = Callable[..., Any]
GREEDY = Params(temperature=0)
LONG = "the hill and the sea " * 80


def request(text: str, session: str | None = "s", max_tokens: int = 200) -> TurnRequest:
    return TurnRequest((Message("user", text),), session=session, max_tokens=max_tokens, params=GREEDY)


async def drain(turn: Any) -> None:
    async for _ in turn:
        pass


async def reference(make_engine: Make, ask: Make, *texts: str, window: int = 1024) -> list[Any]:
    """What an engine answers that nobody has cancelled anything in."""
    engine = make_engine(window=window)
    return [await ask(engine, text, session="s") for text in texts]


async def test_cancelled_in_the_middle_of_its_prefill(
    make_engine: Make, ask: Make, make_gate: Make, window_of: Make
) -> None:
    """At most the chunk that is being computed is still computed; tokens, pages and rows are as before."""
    engine = make_engine(window=1536)
    await ask(engine, "hello", session="s")
    before, pages = window_of(engine, "s"), engine.stats().pages_used
    gate = make_gate(engine)
    turn = await engine.admit(request(LONG))
    await gate.allow(1)
    closing = asyncio.create_task(turn.aclose())
    await asyncio.sleep(0)
    gate.open()
    await closing
    assert len(gate.steps) <= 2
    assert sum(count for step in gate.steps for _, count in step) < turn.prompt_tokens - len(before)
    assert (window_of(engine, "s"), engine.stats().pages_used) == (before, pages)
    assert (engine.stats().rows_busy, engine.stats().leases) == (0, 0)
    again = await ask(engine, "and now", session="s")
    expected = (await reference(make_engine, ask, "hello", "and now", window=1536))[1]
    assert again.text == expected.text
    assert again.result.window == expected.result.window


async def test_cancelled_in_the_middle_of_its_answer(make_engine: Make, ask: Make, window_of: Make) -> None:
    engine = make_engine(window=1024)
    await ask(engine, "hello", session="s")
    before, pages = window_of(engine, "s"), engine.stats().pages_used
    async with aclosing((await engine.admit(request("tell me all"))).chunks()) as chunks:
        await anext(chunks)
        await anext(chunks)
    assert (window_of(engine, "s"), engine.stats().pages_used) == (before, pages)
    assert (engine.stats().rows_busy, engine.stats().leases) == (0, 0)
    again = await ask(engine, "and now", session="s")
    expected = (await reference(make_engine, ask, "hello", "and now"))[1]
    assert again.text == expected.text
    assert again.result.window == expected.result.window


async def test_a_turn_that_evicts_is_taken_back_with_what_it_evicted(
    make_engine: Make, ask: Make, window_of: Make
) -> None:
    engine = make_engine(window=256)
    for n in range(3):
        await ask(engine, f"turn {n} of some length", session="s")
    before = window_of(engine, "s")
    turn = await engine.admit(request("x" * 60))
    assert turn.dropped_tokens > 0
    await turn.aclose()
    assert window_of(engine, "s") == before
    assert (await engine.session_state("s"))["window"]["evicted"] == 0


async def test_an_answer_that_was_computed_but_not_read_is_not_kept(
    make_engine: Make, ask: Make, until: Make, window_of: Make
) -> None:
    """A session holds what its client has seen, not what the engine has done."""
    engine = make_engine()
    await ask(engine, "hello", session="s")
    before = window_of(engine, "s")
    turn = await engine.admit(request("more", max_tokens=5))
    await until(lambda: engine.stats().active == 0)
    await asyncio.sleep(0.01)
    assert engine.stats().leases == 1
    await turn.aclose()
    await turn.aclose()
    assert window_of(engine, "s") == before
    assert [chunk async for chunk in turn] == []


async def test_the_turn_is_kept_once_the_last_chunk_is_taken(make_engine: Make, window_of: Make, until: Make) -> None:
    """The reader need not come back for the end of the iteration."""
    engine = make_engine()
    turn = await engine.admit(request("more", max_tokens=5))
    while (await anext(turn)).result is None:
        pass
    await turn.aclose()
    assert (await engine.session_state("s"))["turns"] == 1


async def test_cancelling_the_task_that_reads_takes_the_turn_back(make_engine: Make, ask: Make, until: Make) -> None:
    engine = make_engine()
    reading = asyncio.create_task(ask(engine, "hello", session="s", max_tokens=400))
    await until(lambda: engine.stats().active == 1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    stats = engine.stats()
    assert (stats.rows_busy, stats.leases, stats.sessions, stats.pages_used) == (0, 0, 0, 0)


async def test_cancelled_while_it_waits_for_a_row_or_for_admission(
    make_engine: Make, ask: Make, make_gate: Make, until: Make
) -> None:
    engine = make_engine(rows=1)
    await engine.start()
    gate = make_gate(engine)
    running = asyncio.create_task(ask(engine, "one", max_tokens=8))
    await gate.allow(1)
    unadmitted = asyncio.create_task(engine.admit(request("two")))
    await asyncio.sleep(0.01)
    unadmitted.cancel()
    await asyncio.sleep(0.01)
    assert engine.stats().leases == 1
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await unadmitted
    await running
    assert (engine.stats().leases, engine.stats().sessions, engine.stats().queued) == (0, 0, 0)


async def test_the_others_go_on_when_one_is_cancelled_or_not_read(make_engine: Make, ask: Make) -> None:
    """A slow reader costs nobody anything; it gets what it missed in one piece."""
    engine = make_engine(rows=3)
    slow = await engine.admit(request("slow", session=None, max_tokens=50))
    gone = await engine.admit(request("gone", session="g"))
    answer = await ask(engine, "hello", max_tokens=60)
    await gone.aclose()
    assert answer.result.usage.completion_tokens == 60
    expected = await ask(make_engine(), "hello", max_tokens=60)
    assert answer.text == expected.text
    pieces = [chunk async for chunk in slow.chunks()]
    assert len(pieces) < 50
    assert pieces[-1].result is not None
    alone = await ask(make_engine(), "slow", max_tokens=50)
    assert "".join(piece.text for piece in pieces) == alone.text


async def test_closing_the_engine_ends_what_is_running(make_engine: Make, until: Make) -> None:
    """Readers are told, threads are gone, nothing waits for ever."""
    engine = make_engine()
    turns = [await engine.admit(request("hello", session=f"s{n}", max_tokens=400)) for n in range(6)]
    await engine.close()
    for turn in turns:
        with pytest.raises(Overloaded):
            await drain(turn)
    assert engine.stats().leases == 0
    assert not engine._thread.alive
