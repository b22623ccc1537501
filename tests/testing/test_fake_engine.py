"""``FakeEngine``: the limits, the time and the faults of a real engine, without a model."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from otelctx.context.current import USAGE_INPUT, USAGE_OUTPUT, session
from otelctx.errors import Overloaded, SessionNotFound, TokenLimitExceeded
from otelctx.testing import FakeEngine, ManualClock


async def run(engine: FakeEngine, words: int = 2, **options: Any) -> Any:
    await engine.start()
    messages = [{"role": "user", "content": " ".join(["word"] * words)}]
    chunks = [chunk async for chunk in engine.chat(messages, **options)]
    return chunks[-1].result


@pytest.mark.parametrize("window", [3, 8, 64])
async def test_a_session_has_the_window_that_the_engine_has(window: int) -> None:
    engine = FakeEngine(window=window)
    result = await run(engine, session="s1")
    state = (await engine.session_state("s1"))["window"]
    assert state["limit"] == engine.window == result.window.limit == window
    assert state["used"] == result.window.used <= window


@pytest.mark.parametrize(
    ("window", "max_tokens", "finish", "limit", "tokens"),
    [
        (64, None, "stop", None, 4),
        (64, 4, "stop", None, 4),
        (64, 9, "stop", None, 4),
        (64, 3, "length", "output", 3),
        (6, None, "stop", None, 4),
        (5, None, "length", "context", 3),
        (5, 3, "length", "output", 3),
        (5, 2, "length", "output", 2),
        (3, 2, "length", "context", 1),
    ],
)
async def test_an_answer_ends_where_its_limit_is(
    window: int, max_tokens: int | None, finish: str, limit: str | None, tokens: int
) -> None:
    engine = FakeEngine(window=window)
    result = await run(engine, max_tokens=max_tokens)
    assert (result.finish_reason, result.limit, result.usage.completion_tokens) == (finish, limit, tokens)
    assert engine.outcomes == ["completed" if limit is None else "length"]


async def test_a_prompt_that_leaves_no_room_is_refused_and_the_session_stays_as_it_was() -> None:
    engine = FakeEngine(window=8)
    await run(engine, session="s1")
    with pytest.raises(TokenLimitExceeded) as caught:
        await run(engine, session="s1")
    assert caught.value.details["n_prompt_tokens"] == 8
    assert engine.outcomes == ["completed", "rejected"]
    assert (await engine.session_state("s1"))["window"]["used"] == 6
    assert engine.stats().active == 0


async def test_time_is_that_of_its_clock() -> None:
    clock = ManualClock()
    engine = FakeEngine(first=60.0, each=10.0, clock=clock)
    result = await run(engine)
    assert (result.time_to_first_token, clock.now) == (60.0, 90.0)


async def test_a_deadline_ends_the_answer_where_it_is() -> None:
    engine = FakeEngine(first=60.0, each=10.0, clock=ManualClock())
    result = await run(engine, deadline=75.0)
    assert (result.finish_reason, result.limit, result.outcome) == ("length", "deadline", "deadline")
    assert result.usage.completion_tokens == 2
    assert engine.outcomes == ["deadline"]


async def test_a_deadline_before_the_first_token_leaves_none() -> None:
    result = await run(FakeEngine(first=60.0, clock=ManualClock()), deadline=1.0)
    assert (result.usage.completion_tokens, result.time_to_first_token) == (0, None)


async def test_real_time_is_the_default() -> None:
    result = await run(FakeEngine(first=0.001))
    assert result.time_to_first_token >= 0.001


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_it_fails_where_it_is_told_to(after: int) -> None:
    engine = FakeEngine(fail=RuntimeError("out of order"), fail_after=after)
    await engine.start()
    chunks = engine.chat([{"role": "user", "content": "hello"}], session="s1")
    assert [(await anext(chunks)).text for _ in range(after)] == list(engine.reply[:after])
    with pytest.raises(RuntimeError, match="out of order"):
        await anext(chunks)
    assert engine.outcomes == ["error"]
    engine.fail = None
    assert (await run(engine, session="s1")).outcome == "completed"


async def test_it_refuses_what_it_is_told_to_and_everything_before_it_has_started() -> None:
    with pytest.raises(Overloaded):
        await run(FakeEngine(refuse=Overloaded("full")))
    with pytest.raises(Overloaded):
        async for _ in FakeEngine().chat([{"role": "user", "content": "hello"}]):
            pass


async def test_a_turn_is_held_by_its_gate_and_taken_back_when_it_is_left() -> None:
    engine = FakeEngine(gate=asyncio.Event())
    await engine.start()
    chunks = engine.chat([{"role": "user", "content": "hello"}], session="s1")
    assert (await anext(chunks)).text == "Hello"
    assert engine.begun.is_set()
    assert engine.stats().active == 1
    await chunks.aclose()
    assert (engine.outcomes, engine.stats().active) == (["cancelled"], 0)
    with pytest.raises(SessionNotFound):  # it began with this turn
        await engine.session_state("s1")


def test_neither_it_nor_what_serves_it_needs_torch() -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['torch', 'transformers', 'tokenizers']))\n"
        "import otelctx\n"
        "from otelctx.testing import FakeEngine\n"
        "otelctx.serving.app(FakeEngine())"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


async def test_usage_is_recorded_in_the_scope_of_the_turn() -> None:
    with session("chat-42"):
        await run(FakeEngine(), words=5)
        assert (USAGE_INPUT.get(), USAGE_OUTPUT.get()) == (5, 4)
