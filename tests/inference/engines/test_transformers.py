"""The engine answers as the model itself would, whatever else it is doing, and says what it did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from otelctx.errors import (
    ArenaExhausted,
    ConfigError,
    InvalidRequest,
    Overloaded,
    SessionBusy,
    SessionNotFound,
    TokenLimitExceeded,
)
from otelctx.inference.engines.base import Engine
from otelctx.inference.sampling import Params
from otelctx.inference.turn import Message, TurnRequest

Make = Callable[..., Any]
WORDS = ("hello there", "an ant sells tea", "the sea, the hill and the shell", "tell me all", "1234 5678")


async def test_concurrent_sessions_are_each_answered_as_the_model_alone_would(
    make_engine: Make, ask: Make, window_of: Make, judge: Any
) -> None:
    """Three sessions of several turns in two rows, so that rows are shared, stolen and refilled."""
    engine = make_engine(rows=2)

    async def converse(session: str, first: int) -> None:
        for turn in range(4):
            answer = await ask(engine, f"{WORDS[(first + turn) % 5]} {turn}", session=session, max_tokens=12 + first)
            ids = window_of(engine, session)
            assert answer.result.window.used == len(ids)
            judge.check(ids, answer.result.usage.completion_tokens)

    await asyncio.gather(*(converse(f"s{n}", n) for n in range(3)))
    assert len(judge.tokens) >= 20


async def test_greedy_answers_are_generates(make_engine: Make, ask: Make, judge: Any, chatml: Any) -> None:
    engine = make_engine()
    answers = await asyncio.gather(*(ask(engine, text, max_tokens=30) for text in WORDS))
    for text, answer in zip(WORDS, answers, strict=True):
        prompt = chatml.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        ids = torch.tensor([prompt])
        generated = judge.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30, eos_token_id=None
        )[0][len(prompt) :].tolist()
        assert answer.text == chatml.decode(generated, skip_special_tokens=True)
        assert answer.result.usage.prompt_tokens == len(prompt)


async def test_later_turns_feed_only_what_is_new(make_engine: Make, ask: Make, window_of: Make) -> None:
    """What the row holds is everything but the last sampled token; that and the closing ids are fed first."""
    engine = make_engine()
    await ask(engine, "hello", session="s")
    held = len(window_of(engine, "s"))
    second = await ask(engine, "and again", session="s")
    assert second.result.usage.cached_tokens == held - 1
    assert second.result.usage.prompt_tokens > held


async def test_a_sessions_window_is_its_conversation_as_the_template_writes_it(
    make_engine: Make, ask: Make, window_of: Make, chatml: Any
) -> None:
    engine = make_engine()
    first = await ask(engine, "hello", session="s", max_tokens=5)
    generated = window_of(engine, "s")[-5:]
    await ask(engine, "more", session="s", max_tokens=5)
    conversation = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "@"},
        {"role": "user", "content": "more"},
    ]
    rendered = chatml.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    at = rendered.index(chatml.convert_tokens_to_ids("@"))
    assert window_of(engine, "s")[:-5] == [*rendered[:at], *generated, *rendered[at + 1 :]]
    assert first.result.window.used == at + 5


async def test_turns_drops_the_oldest_exchanges_whole_and_keeps_the_head(
    make_engine: Make, ask: Make, window_of: Make, judge: Any, chatml: Any
) -> None:
    engine = make_engine(window=256)
    head = chatml.encode("<|im_start|>system\nBe brief.<|im_end|>\n", add_special_tokens=False)
    dropped, lengths = 0, []
    for turn in range(8):
        answer = await ask(engine, f"turn {turn}: " + "xyz " * 8, session="s")
        usage, window, ids = answer.result.usage, answer.result.window, window_of(engine, "s")
        judge.check(ids, usage.completion_tokens)
        dropped += usage.dropped_tokens
        lengths.append(usage.prompt_tokens)
        assert ids[: len(head)] == head
        assert ids[len(head) : len(head) + 1] == [chatml.convert_tokens_to_ids("<|im_start|>")]
        assert window.used == len(ids) <= 256
        assert window.evicted == dropped
        if usage.dropped_tokens:
            assert usage.prompt_tokens <= 256 * 3 // 4
            # What follows the head begins alike in each exchange, and is shared as far as that.
            assert len(head) <= usage.cached_tokens <= len(head) + 12
    assert dropped > 0
    assert f"turn {turn}" in chatml.decode(ids)
    assert "turn 0" not in chatml.decode(ids)


async def test_an_answer_may_go_on_until_the_window_is_full(make_engine: Make, ask: Make, window_of: Make) -> None:
    engine = make_engine(window=128)
    answer = await ask(engine, "hello", session="s", max_tokens=10**30)
    assert (answer.result.finish_reason, answer.result.limit) == ("length", "context")
    assert answer.result.window.used == len(window_of(engine, "s")) == 128
    second = await ask(engine, "again", session="s", max_tokens=4)
    assert second.result.usage.dropped_tokens > 0
    assert second.result.limit == "output"


@pytest.mark.parametrize("session", [None, "s"])
async def test_a_message_that_leaves_no_room_is_refused_with_exact_numbers(
    make_engine: Make, ask: Make, session: str | None
) -> None:
    engine = make_engine(window=128)
    with pytest.raises(TokenLimitExceeded, match="maximum context length") as caught:
        await ask(engine, "é" * 300, session=session, max_tokens=50)
    details = caught.value.details
    # A byte is a token here, and 15 + 21 + 13 tokens stand around the text.
    assert details["n_prompt_tokens"] if "n_prompt_tokens" in details else details["n_prompt_tokens_at_least"] >= 113
    assert details["max_context"] == 128
    assert details["max_new_tokens_requested"] == 50
    assert details["policy"] == ("turns" if session else "reject")
    assert engine.stats().sessions == 0
    assert (await ask(engine, "hello", session=session)).result.usage.completion_tokens == 20


async def test_reject_refuses_the_turn_and_leaves_the_session_as_it_was(
    make_engine: Make, ask: Make, window_of: Make
) -> None:
    engine = make_engine(window=128, when_full="reject")
    await ask(engine, "hello", session="s")
    before, pages = window_of(engine, "s"), engine.stats().pages_used
    with pytest.raises(TokenLimitExceeded) as caught:
        await ask(engine, "x" * 50, session="s")
    assert caught.value.details["policy"] == "reject"
    assert window_of(engine, "s") == before
    assert engine.stats().pages_used == pages
    assert (await ask(engine, "x", session="s", max_tokens=1)).result.usage.dropped_tokens == 0


async def test_the_newest_of_several_exchanges_is_kept_when_a_session_begins_too_long(
    make_engine: Make, chatml: Any, window_of: Make
) -> None:
    """``prompt + dropped = rendered``, though what was dropped never came into the window."""
    engine = make_engine(window=128)
    messages = []
    for n in range(6):
        messages += [Message("user", f"question {n}"), Message("assistant", f"answer {n}")]
    messages.append(Message("user", "the last"))
    plain = [{"role": m.role, "content": m.content} for m in messages]
    rendered = chatml.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
    async for chunk in engine.chat(messages, session="s", max_tokens=5, params=Params(temperature=0)):
        result = chunk.result
    assert result.usage.prompt_tokens + result.usage.dropped_tokens == len(rendered) > 128
    assert result.window.evicted == 0
    text = chatml.decode(window_of(engine, "s"))
    assert "the last" in text
    assert "Be brief." in text
    assert "question 0" not in text


async def test_a_repeated_system_prompt_is_not_appended_again(make_engine: Make, window_of: Make, chatml: Any) -> None:
    engine = make_engine()
    system = Message("system", "Speak.")
    for text in ("one", "two"):
        async for _ in engine.chat([system, Message("user", text)], session="s", max_tokens=3):
            pass
    assert chatml.decode(window_of(engine, "s")).count("Speak.") == 1
    async for _ in engine.chat([Message("system", "Sing."), Message("user", "3")], session="s", max_tokens=3):
        pass
    assert chatml.decode(window_of(engine, "s")).count("Sing.") == 1
    with pytest.raises(InvalidRequest):
        await anext(engine.chat([system], session="s"))


async def test_a_history_without_a_session_reuses_the_row_of_its_owner_only(make_engine: Make, ask: Make) -> None:
    """How fast a prompt is must not tell one owner what another has asked."""
    engine = make_engine()
    text = "a rather long question " * 4
    first = await ask(engine, text, owner="a")
    assert (await ask(engine, text, owner="b")).result.usage.cached_tokens == 0
    again = await ask(engine, text, owner="a")
    assert again.result.usage.cached_tokens == first.result.usage.prompt_tokens - 1
    assert again.text == first.text


async def test_a_session_belongs_to_its_owner(make_engine: Make, ask: Make) -> None:
    engine = make_engine()
    await ask(engine, "hello", session="s", owner="a")
    with pytest.raises(SessionNotFound):
        await ask(engine, "hello", session="s", owner="b")
    with pytest.raises(SessionNotFound):
        await engine.session_state("s", "b")
    with pytest.raises(SessionNotFound):
        await engine.delete_session("s", "b")
    state = await engine.session_state("s", "a")
    assert (state["turns"], state["version"], state["busy"]) == (1, 1, False)
    await engine.delete_session("s", "a")
    assert engine.stats().pages_used == 0


async def test_the_turns_of_one_session_run_one_after_the_other(
    make_engine: Make, ask: Make, make_gate: Make, window_of: Make
) -> None:
    engine = make_engine()
    await engine.start()
    gate = make_gate(engine)
    first = asyncio.create_task(ask(engine, "first", session="s", max_tokens=3))
    await gate.allow(1)
    second = asyncio.create_task(ask(engine, "second", session="s", max_tokens=3))
    await asyncio.sleep(0.01)
    with pytest.raises(SessionBusy):
        await engine.delete_session("s")
    assert engine.stats().leases == 1
    gate.open()
    await first
    answer = await second
    assert answer.result.window.version == 2


async def test_a_full_queue_is_an_overload_and_nothing_else_suffers(
    make_engine: Make, ask: Make, make_gate: Make, until: Make
) -> None:
    engine = make_engine(rows=1, queue=1)
    await engine.start()
    gate = make_gate(engine)
    running = asyncio.create_task(ask(engine, "one", max_tokens=9))
    await gate.allow(1)
    waiting = asyncio.create_task(ask(engine, "two", max_tokens=2))
    await asyncio.sleep(0.01)
    await gate.allow(1)
    await until(lambda: engine.stats().queued == 1)
    refused = asyncio.create_task(ask(engine, "three"))
    await asyncio.sleep(0.01)
    await gate.allow(1)
    with pytest.raises(Overloaded) as caught:
        await refused
    assert caught.value.status == 503
    gate.open()
    assert (await running).result.usage.completion_tokens == 9
    assert (await waiting).result.usage.completion_tokens == 2


async def test_a_burst_fills_the_rows_before_the_queue(make_engine: Make, ask: Make, make_gate: Make) -> None:
    engine = make_engine(rows=3, queue=1)
    await engine.start()
    gate = make_gate(engine)
    asked = [asyncio.create_task(ask(engine, f"number {n}", max_tokens=2)) for n in range(5)]
    await asyncio.sleep(0)
    gate.open()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(end, Overloaded) for end in ends] == [False, False, False, False, True]


async def test_a_session_whose_answer_could_not_be_kept_is_refused_at_once(
    make_engine: Make, ask: Make, make_gate: Make
) -> None:
    """Pages for the answers of running turns are promised, so that no answer is given and then lost."""
    engine = make_engine(window=128, pages=8)
    await engine.start()
    gate = make_gate(engine)
    running = [asyncio.create_task(ask(engine, "hello", session=s, max_tokens=10)) for s in ("a", "b")]
    await asyncio.sleep(0.01)
    await gate.allow(1)
    third = asyncio.create_task(ask(engine, "hello", session="c", max_tokens=10))
    await asyncio.sleep(0.01)
    await gate.allow(1)
    with pytest.raises(ArenaExhausted) as caught:
        await third
    assert caught.value.status == 503
    gate.open()
    assert [answer.result.usage.completion_tokens for answer in await asyncio.gather(*running)] == [10, 10]
    assert engine.stats().sessions == 2
    assert (await ask(engine, "hello", session="c", max_tokens=10)).result.window.version == 1


async def test_a_deadline_ends_the_answer_where_it_is(make_engine: Make, ask: Make, make_gate: Make) -> None:
    now = 100.0
    engine = make_engine(clock=lambda: now)
    await engine.start()
    gate = make_gate(engine)
    task = asyncio.create_task(ask(engine, "hello", session="s", deadline=5.0, max_tokens=50))
    await gate.allow(3)
    now = 105.0
    gate.open()
    result = (await task).result
    assert (result.finish_reason, result.limit, result.outcome) == ("length", "deadline", "deadline")
    assert 3 <= result.usage.completion_tokens <= 4
    assert result.window.version == 1


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"messages": ()}, "messages"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ("",)}, "stop"),
        ({"messages": (Message("wizard", "x"),)}, "messages[0].role"),
        ({"messages": (Message("user", "\ud800"),)}, "messages[0].content"),
    ],
)
async def test_bad_requests_name_the_parameter(make_engine: Make, wrong: dict[str, Any], param: str) -> None:
    engine = make_engine()
    request = {"messages": (Message("user", "x"),), "session": "s"} | wrong
    with pytest.raises(InvalidRequest) as caught:
        await engine.admit(TurnRequest(**request))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert engine.stats().sessions == 0


async def test_an_engine_is_what_serving_asks_for(make_engine: Make) -> None:
    engine: Engine = make_engine(model_max=2048)
    assert not engine.ready
    await engine.start()
    await engine.start()
    assert engine.ready
    assert (engine.name, engine.window, engine.model_max) == ("tiny", 512, 2048)
    await engine.close()
    await engine.close()
    assert not engine.ready
    with pytest.raises(Overloaded):
        await anext(engine.chat([Message("user", "x")]))


def test_a_configuration_that_cannot_work_is_refused(chat_model: Any, chatml: Any, twin: Make) -> None:
    from otelctx.inference.engines.transformers import TransformersEngine

    model = twin(chat_model)
    with pytest.raises(ConfigError, match="when_full"):
        TransformersEngine(model, chatml, when_full="sideways")  # type: ignore[arg-type]
    before = model.config._attn_implementation
    for window in (4096, 10**12):  # before memory for it is asked for
        with pytest.raises(ConfigError, match="positions"):
            TransformersEngine(model, chatml, window=window)
    with pytest.raises(ConfigError, match="tokens"):
        TransformersEngine(model, chatml, window=8)
    # A model that was not taken is as it was, and can be taken.
    assert model.config._attn_implementation == before
    TransformersEngine(model, chatml, window=64)._runner.close()
