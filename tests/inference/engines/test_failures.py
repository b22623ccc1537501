"""One request's failure is its own; the engine's own failure is told to everybody and to the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from otelctx.errors import BudgetExhausted, EngineFailed, OtelctxError, Overloaded
from otelctx.inference.ceiling import STEADY
from otelctx.inference.detokenize import Stream
from otelctx.inference.kvrows import StepResult
from otelctx.inference.sampling import Params, RowState
from otelctx.inference.tokenizer import ChatTokenizer

GREEDY = Params(temperature=0)
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


async def test_after_a_lack_of_memory_the_chunk_recovers(make_engine: Make, ask: Make) -> None:
    """While memory is short, steps that have too much are the exception; when it is there again, chunks grow back."""
    engine = make_engine(window=2048)
    sizes: list[int] = []
    memory = 20

    def limited(work: Any, step: Any) -> Any:
        sizes.append(sum(len(ids) for _, ids in work))
        if sizes[-1] > memory:
            raise torch.OutOfMemoryError("out of memory")
        return step(work)

    expected = await ask(make_engine(window=2048), "long " * 280, max_tokens=3)
    spoil(engine, limited)
    short = await ask(engine, "long " * 280, max_tokens=3)
    assert sum(size > memory for size in sizes) < len(sizes) / STEADY + 8
    memory = 10_000
    await ask(engine, "meanwhile", max_tokens=6 * STEADY)
    engine._runner.kv.lengths[:] = [0] * 4
    sizes.clear()
    enough = await ask(engine, "long " * 280, max_tokens=3)
    assert short.text == enough.text == expected.text
    assert max(sizes) == sizes[0] > 500


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), RuntimeError("can't allocate memory")])
async def test_memory_that_lacks_once_costs_nobody_an_answer(
    make_engine: Make, ask: Make, at: int, error: Exception
) -> None:
    """In a prompt or in an answer: the step is made again, smaller, and every token is as it would have been."""
    texts = ["one", "two " * 40, "three"]
    alone = [(await ask(make_engine(), text, max_tokens=8)).text for text in texts]
    engine = make_engine()
    calls = 0

    def once(work: Any, step: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise error
        return step(work)

    spoil(engine, once)
    answers = await asyncio.gather(*(ask(engine, text, max_tokens=8) for text in texts))
    assert calls > at
    assert [answer.text for answer in answers] == alone


async def test_a_request_that_the_model_raises_at_fails_alone(make_engine: Make, ask: Make, window_of: Make) -> None:
    """It is found among its neighbours, they don't notice, its session is as before, and the engine goes on."""
    engine = make_engine(rows=3)
    await ask(engine, "hello", session="s")
    before = window_of(engine, "s")
    bad = -1

    def bad_row(work: Any, step: Any) -> Any:
        nonlocal bad
        if bad < 0 and len(work) == 3:
            bad = next(row for row, _ in work if engine._runner.kv.lengths[row] > len(before))
        if any(row == bad for row, _ in work):
            raise IndexError("index out of range in self")
        return step(work)

    alone = await asyncio.gather(*(ask(make_engine(), text, max_tokens=30) for text in ("one", "two")))
    spoil(engine, bad_row)
    good = [asyncio.create_task(ask(engine, text, max_tokens=30)) for text in ("one", "two")]
    with pytest.raises(EngineFailed) as caught:
        await ask(engine, "more", session="s", max_tokens=200)
    assert (caught.value.status, caught.value.code) == (500, "engine_failed")
    assert [answer.text for answer in await asyncio.gather(*good)] == [answer.text for answer in alone]
    bad = 99
    assert engine.ready
    assert window_of(engine, "s") == before
    assert (await ask(engine, "again", session="s", max_tokens=9)).result.window.version == 2


@pytest.mark.parametrize("where", ["encode", "push", "finish", "sample"])
async def test_a_mistake_beside_the_model_is_one_requests_too(
    make_engine: Make, ask: Make, window_of: Make, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Tokenizer, detokenizer and sampler: the request fails, its neighbour and its session don't."""
    engine = make_engine()
    await ask(engine, "hello", session="s")
    before = window_of(engine, "s")
    seed = 4711
    owners = {
        "encode": (ChatTokenizer, "message", lambda message, at: "mistake" in message.content),
        "push": (Stream, "push", None),
        "finish": (Stream, "finish", None),
        "sample": (RowState, "number", None),
    }
    cls, name, wrong = owners[where]
    original = getattr(cls, name)
    marked: set[int] = set()

    def spoilt(self: Any, *args: Any) -> Any:
        if (wrong is not None and wrong(*args)) or id(self) in marked:
            raise ValueError("a mistake")
        return original(self, *args)

    def mark(job: Any) -> None:
        if job.request.params.seed == seed:
            marked.update((id(job.stream), id(job.state)))
        admit(job)

    admit = engine._core.admit
    engine._core.admit = mark
    expected = await ask(make_engine(), "good", max_tokens=20)
    good = asyncio.create_task(ask(engine, "good", max_tokens=20))
    monkeypatch.setattr(cls, name, spoilt)
    with pytest.raises((EngineFailed, ValueError)):
        await ask(engine, "mistake", session="s", max_tokens=9, params=Params(seed=seed))
    assert (await good).text == expected.text
    assert engine.ready
    assert window_of(engine, "s") == before
    marked.clear()
    assert (await ask(engine, "fine", session="s", max_tokens=9)).result.window.version == 2


@pytest.mark.parametrize(
    ("error", "poisoned"),
    [
        (ValueError("shape mismatch"), None),
        (torch.AcceleratorError("CUDA error: device-side assert triggered\nhint"), "device-side assert triggered"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "illegal memory access"),
    ],
)
async def test_an_engine_that_went_wrong_says_so_and_takes_no_more(
    make_engine: Make, ask: Make, error: Exception, poisoned: str | None
) -> None:
    """Running and waiting requests fail at once, sessions are as before, and readiness is off. A device that is lost
    is told apart, and not touched again."""
    engine = make_engine(rows=2)
    await ask(engine, "hello", session="s")
    state = await engine.session_state("s")
    calls = 0

    def broken(work: Any, step: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise error
        return step(work)

    spoil(engine, broken)
    asked = [ask(engine, "more", session=session, max_tokens=50) for session in ("s", None, "t", None)]
    for failed in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(failed, EngineFailed)
        assert failed.code == "engine_failed"
    assert not engine.ready
    with pytest.raises(Overloaded):
        await ask(engine, "more")
    assert (await engine.session_state("s")) | {"idle_seconds": 0} == state | {"idle_seconds": 0}
    assert str(error).partition("\n")[0] in engine.broken
    if poisoned is None:
        assert engine.poisoned is None
    else:
        assert poisoned in engine.poisoned
        assert "\n" not in engine.poisoned
        assert calls == 4
