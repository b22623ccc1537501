"""Answers that go on when the window is full, exactly as if what they still have had been all there ever was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
import torch

from otelctx.errors import Overloaded, TokenLimitExceeded
from otelctx.inference import running
from otelctx.inference.detokenize import Detokenizer
from otelctx.inference.sampling import Params
from otelctx.inference.turn import Message, TurnRequest
from otelctx.testing import Captured

Make = Callable[..., Any]
WINDOW = 96
GREEDY = Params(temperature=0)


class Spy:
    """Each step of the engine: what each row that was fed holds then, and the logits that follow."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._step = engine, engine._runner.step
        self.seen: list[tuple[list[int], Any]] = []
        engine._runner.step = self

    def __call__(self, work: Any) -> Any:
        held = [[*self._engine._core._rows.tokens(row).tolist(), *map(int, ids)] for row, ids in work]
        result = self._step(work)
        self.seen += [(tokens, line.clone()) for tokens, line in zip(held, result.logits, strict=True)]
        return result


def contexts(prompt: list[int], answer: list[int], pinned: int) -> list[list[int]]:
    """What must stand before each token of ``answer``."""
    found, context = [], list(prompt)
    for token in answer:
        found.append(list(context))
        context.append(token)
        if len(context) == WINDOW:
            del context[pinned : pinned + WINDOW // 4]
    return found


async def test_after_each_slide_logits_are_those_of_a_fresh_forward_over_the_kept_tokens(
    make_engine: Make, ask: Make, judge: Any, chatml: Any
) -> None:
    """Teacher-forced, in float32; meanwhile another turn slides beside it."""
    engine = make_engine(window=WINDOW, when_full="slide", rows=2)
    await engine.start()
    spy = Spy(engine)
    answers = await asyncio.gather(
        *(ask(engine, text, session=text, max_tokens=most) for text, most in [("tell me all", 260), ("hello", 190)])
    )
    with torch.inference_mode():
        for tokens, logits in spy.seen:
            reference = judge.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
            assert float((logits - reference).abs().max()) <= 1e-3
    for text, answer in zip(("tell me all", "hello"), answers, strict=True):
        prompt = chatml.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        pinned = engine._store.get(text, "anonymous").window.pinned
        assert 0 < pinned < len(prompt)
        # What was generated is what each context ends with; step by step it is the greedy choice of the one before.
        by_context = {tuple(tokens): int(line.argmax()) for tokens, line in spy.seen}
        generated: list[int] = []
        context = list(prompt)
        for _ in range(answer.result.usage.completion_tokens):
            generated.append(by_context[tuple(context)])
            context = contexts(prompt, [*generated, 0], pinned)[-1]
        assert answer.text == written(chatml, generated)
        assert len(set(generated)) >= 15


async def test_a_reader_that_falls_too_far_behind_an_endless_answer_is_given_up(
    make_engine: Make, ask: Make, until: Make, otelctx_capture: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it is bounded; one that reads is served beside it, and no session keeps what nobody took."""
    monkeypatch.setattr(running, "_UNREAD", 100)
    engine = make_engine(window=WINDOW, when_full="slide", rows=2)
    request = TurnRequest(messages=(Message("user", "tell me all"),), session="s", params=GREEDY)
    endless = await engine.admit(request)
    answer = await ask(engine, "hello", max_tokens=150, when_full="slide")
    assert answer.result.usage.completion_tokens == 150
    await until(lambda: engine.stats().active == 0 and engine.stats().leases == 0)
    text = (await anext(endless)).text
    with pytest.raises(Overloaded) as caught:
        await anext(endless)
    assert caught.value.code == "reader_too_slow"
    assert 100 < len(text) < 200
    assert engine.stats().sessions == 0
    outcomes = sorted(span.attributes["otelctx.outcome"] for span in otelctx_capture.spans if span.name == "chat tiny")
    assert outcomes == ["length", "shed"]


def written(tokenizer: Any, ids: list[int]) -> str:
    stream = Detokenizer(tokenizer).stream()
    return "".join(stream.push(token) for token in ids) + stream.finish()[0]


@pytest.fixture
def some_ids(chatml: Any) -> list[int]:
    return [int(token) for token in chatml.encode("the quick brown fox; " * 30, add_special_tokens=False)]


@pytest.mark.parametrize("length", [40, 90, 300])
async def test_the_session_holds_the_end_of_what_was_said_and_goes_on(
    make_speaker: Make, ask: Make, window_of: Make, some_ids: list[int], length: int
) -> None:
    """The answer is shorter than what left, and several windows long."""
    engine = await make_speaker(some_ids, window=WINDOW, when_full="slide")
    await ask(engine, "a", session="s", max_tokens=4)
    window = engine._store.get("s", "anonymous").window
    head = window_of(engine, "s")[: window.pinned]
    engine._core._sampler._at.clear()
    answer = await ask(engine, "b", session="s", max_tokens=length)
    ids = window_of(engine, "s")
    assert len(ids) <= WINDOW
    assert ids[: window.pinned] == head
    told = ids[window.pinned :][-length:]
    assert told == some_ids[:length][-len(told) :]
    assert window.appended == window.kept + window.evicted
    result = answer.result
    assert (result.window.used, result.window.evicted) == (window.kept, window.evicted)
    assert (result.usage.completion_tokens, result.limit) == (length, "output")
    again = await ask(engine, "c", session="s", max_tokens=5)
    # What of the window stayed was not computed again.
    assert again.result.usage.cached_tokens >= (len(ids) - 1 if not again.result.usage.dropped_tokens else len(head))


async def test_one_event_a_turn_counts_all_that_left(
    otelctx_capture: Captured, make_speaker: Make, ask: Make, some_ids: list[int]
) -> None:
    engine = await make_speaker(some_ids, window=WINDOW, when_full="slide")
    result = (await ask(engine, "a", session="s", max_tokens=200)).result
    chat = otelctx_capture.span("chat tiny")
    evicted = result.window.evicted
    assert evicted == result.usage.prompt_tokens + 200 - result.window.used > WINDOW
    numbers = {
        "otelctx.tokens.before": result.window.used + evicted,
        "otelctx.tokens.after": result.window.used,
        "otelctx.tokens.limit": WINDOW,
        "otelctx.reason": "output",
        "otelctx.action": "slide",
    }
    assert [(e.name, dict(e.attributes)) for e in chat.events] == [
        ("otelctx.overflow", numbers),
        ("otelctx.eviction", numbers),
    ]
    assert chat.attributes["otelctx.window.mode"] == "slide"
    assert chat.attributes["otelctx.window.evicted"] == evicted
    assert chat.attributes["gen_ai.usage.input_tokens"] == result.usage.prompt_tokens
    assert otelctx_capture.metric("otelctx.evictions", otelctx__action="slide").value == 1
    assert otelctx_capture.metric("otelctx.kv.tokens", otelctx__action="evicted").value == evicted
    block = WINDOW // 4
    kept_again = WINDOW - block - engine._store.get("s", "anonymous").window.pinned
    recomputed = otelctx_capture.metric("otelctx.kv.tokens", otelctx__action="recomputed").value
    assert recomputed == kept_again * evicted // block


async def test_taken_back_after_it_slid_the_session_is_as_before_bit_for_bit(
    make_speaker: Make, ask: Make, window_of: Make, some_ids: list[int]
) -> None:
    engine = await make_speaker(some_ids, window=WINDOW, when_full="slide")
    await ask(engine, "a", session="s", max_tokens=8)
    before, pages = window_of(engine, "s"), engine.stats().pages_used
    request = TurnRequest((Message("user", "b"),), session="s", params=GREEDY)  # without an end of its own
    shown = ""
    async with aclosing((await engine.admit(request)).chunks()) as chunks:
        async for chunk in chunks:
            shown += chunk.text
            if len(shown) > 3 * WINDOW:
                break
    assert (window_of(engine, "s"), engine.stats().pages_used) == (before, pages)
    window = engine._store.get("s", "anonymous").window
    assert (window.evicted, window.version) == (0, 1)


@pytest.mark.parametrize("stop_at", range(66, 78))
async def test_a_stop_string_is_found_wherever_the_window_slides(
    make_speaker: Make, ask: Make, window_of: Make, chatml: Any, stop_at: int
) -> None:
    text = ("abcdefgh" * 20)[:stop_at] + "STOP" + "xyz" * 30
    engine = await make_speaker(text, window=WINDOW, when_full="slide")
    answer = await ask(engine, "a", session="s", max_tokens=500, stop=("STOP",))
    assert answer.text == text[:stop_at]
    assert answer.result.finish_reason == "stop"
    window = engine._store.get("s", "anonymous").window
    assert chatml.decode(window_of(engine, "s")).endswith(text[:stop_at][-20:])
    assert window.appended == window.kept + window.evicted


async def test_without_a_limit_it_goes_on_until_its_deadline(
    make_speaker: Make, ask: Make, some_ids: list[int], until: Make
) -> None:
    now = [0.0]
    engine = await make_speaker(some_ids * 50, window=WINDOW, when_full="slide", clock=lambda: now[0])
    task = asyncio.create_task(ask(engine, "a", session="s", max_tokens=None, deadline=30.0))
    await until(lambda: any(job.sampled > 4 * WINDOW for job in engine._turns.values()))
    now[0] = 31.0
    result = (await task).result
    assert (result.finish_reason, result.limit, result.outcome) == ("length", "deadline", "deadline")
    assert result.usage.completion_tokens > 4 * WINDOW
    assert result.window.used <= WINDOW


async def test_a_request_asks_for_it_and_needs_no_session(make_speaker: Make, ask: Make, some_ids: list[int]) -> None:
    engine = await make_speaker(some_ids, window=WINDOW)
    plain = await ask(engine, "a", max_tokens=200)
    assert plain.result.limit == "context"
    engine._core._sampler._at.clear()
    slid = await ask(engine, "a", max_tokens=200, when_full="slide")
    assert (slid.result.limit, slid.result.usage.completion_tokens) == ("output", 200)
    assert slid.result.usage.prompt_tokens == plain.result.usage.prompt_tokens
    assert slid.text.startswith(plain.text)
    assert slid.result.window.used + slid.result.window.evicted == slid.result.usage.prompt_tokens + 200


async def test_at_admission_the_oldest_exchanges_go_first(make_speaker: Make, ask: Make, some_ids: list[int]) -> None:
    engine = await make_speaker(some_ids, window=WINDOW, when_full="slide")
    for text in ("a", "b"):
        await ask(engine, text, session="s", max_tokens=8)
    result = (await ask(engine, "x" * 30, session="s", max_tokens=8)).result
    assert result.usage.dropped_tokens > 0
    with pytest.raises(TokenLimitExceeded):
        await ask(engine, "x" * 200, session="s")
