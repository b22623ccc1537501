"""Sessions of real families: what is in the window is what the family's own template writes of the conversation that
the client has seen, turn after turn, also where it must be written anew each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from transformers import LlamaConfig

from otelctx.errors import InvalidRequest, TokenLimitExceeded
from otelctx.inference.prompt import without
from otelctx.inference.turn import messages_of

Make = Callable[..., Any]
WHOLE = ("qwen3", "gemma-2", "gemma-3", "mistral-v0.1", "mistral-v0.3")
PIECES = ("llama-3", "llama-3.1", "llama-3.2", "qwen2.5", "mistral-v7", "smollm2")


@pytest.fixture(scope="session")
def model_of(make_model: Make, small: dict[str, Any], tokenizer_of: Make) -> Callable[[str], Any]:
    models: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name not in models:
            config = LlamaConfig(**(small | {"vocab_size": len(tokenizer_of(name)), "max_position_embeddings": 2048}))
            models[name] = make_model(config)
        return models[name]

    return make


@pytest.fixture
def make_family(make_engine: Make, model_of: Make, tokenizer_of: Make) -> Make:
    """``(family, **options) → engine`` around a tiny model with that family's tokenizer."""

    def make(name: str, **options: Any) -> Any:
        return make_engine(model=model_of(name), tokenizer=tokenizer_of(name), **options)

    return make


@pytest.fixture
def say(make_speaker: Make, model_of: Make, tokenizer_of: Make) -> Make:
    """``await say(family, *texts, **options) → engine`` whose every answer is that; texts are encoded one by one."""

    async def make(name: str, *texts: str, **options: Any) -> Any:
        tokenizer = tokenizer_of(name)
        ids = [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False)]
        ids.append(tokenizer.eos_token_id)
        options = {"eos_ids": (tokenizer.eos_token_id,)} | options
        return await make_speaker(ids, model=model_of(name), tokenizer=tokenizer, **options)

    return make


def rendered(tokenizer: Any, conversation: Sequence[tuple[str, str]]) -> list[int]:
    messages = [{"role": role, "content": content} for role, content in conversation]
    ids: list[int] = tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    return ids


def shorter(conversation: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    messages = messages_of({"role": role, "content": content} for role, content in conversation)
    return [(m.role, m.content) for m in without(messages, count)]


@pytest.mark.parametrize("name", WHOLE)
async def test_each_turn_is_the_conversation_as_the_template_writes_it(
    make_family: Make,
    ask: Make,
    window_of: Make,
    judge_of: Make,
    twin: Make,
    model_of: Make,
    tokenizer_of: Make,
    name: str,
) -> None:
    """Over a window that overflows: whole exchanges go, prompt + dropped = rendered, and the answers are the model's
    own, whatever of the KV was found again."""
    engine, tokenizer, judge = make_family(name, window=256), tokenizer_of(name), judge_of(twin(model_of(name)))
    seen: list[tuple[str, str]] = []
    dropped = 0
    for turn in range(9):
        seen.append(("user", f"turn {turn}: the sea"))
        total = len(rendered(tokenizer, seen))
        answer = await ask(engine, seen[-1][1], session="s", max_tokens=9)
        usage, ids = answer.result.usage, window_of(engine, "s")
        assert usage.prompt_tokens + usage.dropped_tokens == total
        gone = next(n for n in range(len(seen)) if rendered(tokenizer, shorter(seen, n)) == ids[: usage.prompt_tokens])
        assert (gone > 0) == (usage.dropped_tokens > 0)
        if gone:
            assert usage.prompt_tokens <= 256 * 3 // 4
        judge.check(ids, 9)
        dropped += usage.dropped_tokens
        assert answer.result.window.evicted == dropped
        seen = [*shorter(seen, gone), ("assistant", answer.text)]
        assert list(engine._store.get("s", "anonymous").messages) == seen
    assert dropped > 0


@pytest.mark.parametrize("name", [*WHOLE, *PIECES])
async def test_answers_come_back_as_the_template_writes_them(
    say: Make, ask: Make, window_of: Make, tokenizer_of: Make, name: str
) -> None:
    """What closes an answer, what opens the next and what is never said twice (beginning, default system message)."""
    engine, tokenizer = await say(name, "tell me all"), tokenizer_of(name)
    seen: list[tuple[str, str]] = []
    for text in ("hello there", "an ant sells tea", "ten hats"):
        seen.append(("user", text))
        answer = await ask(engine, text, session="s")
        assert answer.result.finish_reason == "stop"
        assert answer.text == "tell me all"
        assert window_of(engine, "s")[: answer.result.usage.prompt_tokens] == rendered(tokenizer, seen)
        seen.append(("assistant", answer.text))
    assert answer.result.usage.cached_tokens > 0


async def test_thoughts_leave_the_window_with_the_next_turn(
    say: Make, ask: Make, window_of: Make, tokenizer_of: Make
) -> None:
    engine, tokenizer = await say("qwen3", "<think>\nhm\n</think>\n\nyes"), tokenizer_of("qwen3")
    await ask(engine, "a", session="s")
    assert "hm" in tokenizer.decode(window_of(engine, "s"))
    await ask(engine, "b", session="s", max_tokens=1)
    text = tokenizer.decode(window_of(engine, "s"))
    assert "hm" not in text
    assert text.startswith("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\nb")


async def test_what_a_stop_string_took_away_was_never_said(
    say: Make, ask: Make, window_of: Make, tokenizer_of: Make
) -> None:
    engine, tokenizer = await say("gemma-3", "tell me all of it"), tokenizer_of("gemma-3")
    answer = await ask(engine, "a", session="s", stop=["all"])
    assert answer.text == "tell me "
    second = await ask(engine, "b", session="s", max_tokens=1)
    conversation = [("user", "a"), ("assistant", "tell me "), ("user", "b")]
    assert window_of(engine, "s")[: second.result.usage.prompt_tokens] == rendered(tokenizer, conversation)


async def test_a_turn_whose_reader_left_is_not_remembered(
    make_family: Make, ask: Make, window_of: Make, until: Make
) -> None:
    engine = make_family("qwen3")
    await ask(engine, "a", session="s", max_tokens=3)
    record = engine._store.get("s", "anonymous")
    before, tokens = record.messages, window_of(engine, "s")
    async with aclosing(engine.chat([{"role": "user", "content": "b"}], session="s", max_tokens=300)) as chunks:
        async for _ in chunks:
            break
    await until(lambda: engine.stats().leases == 0)
    assert record.messages == before
    assert window_of(engine, "s") == tokens
    with pytest.raises(TokenLimitExceeded):
        await ask(engine, "z" * 2000, session="s")
    assert record.messages == before


async def test_the_system_message_stays_and_is_not_said_twice(
    make_family: Make, window_of: Make, tokenizer_of: Make
) -> None:
    engine, tokenizer = make_family("gemma-3", window=256), tokenizer_of("gemma-3")
    for turn in range(6):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"turn {turn} " + "x" * 20}]
        async for _ in engine.chat(messages, session="s", max_tokens=5):
            pass
        text = tokenizer.decode(window_of(engine, "s"))
        assert text.startswith("<bos><start_of_turn>user\nBe brief.\n\nturn ")
        assert text.count("Be brief.") == 1
    assert "turn 0" not in text
    assert engine._store.get("s", "anonymous").messages[0] == ("system", "Be brief.")


async def test_a_refusal_of_special_tokens_is_about_the_request_and_not_about_its_history(
    say: Make, ask: Make, window_of: Make, tokenizer_of: Make
) -> None:
    """The model may write what a client may not; the conversation goes on."""
    engine = await say("qwen3", "<|im_", "end|>", special_tokens="reject")
    answer = await ask(engine, "a", session="s")
    assert answer.text == "<|im_end|>"
    await ask(engine, "b", session="s")
    assert window_of(engine, "s").count(tokenizer_of("qwen3").eos_token_id) == 3
    with pytest.raises(InvalidRequest) as caught:
        await ask(engine, "<|im_end|>", session="s")
    assert caught.value.param == "messages[0].content"


async def test_text_that_the_template_leaves_out_is_not_kept_without_end(make_family: Make, ask: Make) -> None:
    engine = make_family("gemma-2", window=128)
    with pytest.raises(InvalidRequest) as caught:
        await ask(engine, "a" + " " * 9000, session="s")
    assert (caught.value.status, caught.value.code) == (400, "text_too_long")
    for _ in range(4):
        await ask(engine, "a" + " " * 4000, session="s", max_tokens=2)
    kept = engine._store.get("s", "anonymous").messages
    assert sum(len(text) for _, text in kept) <= 64 * 128


@pytest.mark.parametrize("name", ["qwen3", "llama-3"])
async def test_a_request_says_itself_what_happens_when_a_session_is_full(
    make_family: Make, ask: Make, name: str
) -> None:
    engine = make_family(name, window=128, when_full="reject")
    await ask(engine, "x" * 40, session="s", max_tokens=8)
    with pytest.raises(TokenLimitExceeded) as caught:
        await ask(engine, "y" * 40, session="s", max_tokens=16)
    assert caught.value.details["policy"] == "reject"
    answer = await ask(engine, "y" * 40, session="s", max_tokens=16, when_full="turns")
    assert answer.result.usage.dropped_tokens > 0
    endless = await ask(engine, "z", session="s", max_tokens=200, when_full="slide")
    assert endless.result.usage.completion_tokens == 200
    assert endless.result.window.used <= 128
    after = (await ask(engine, "end", session="s", max_tokens=4, when_full="turns")).result
    assert after.usage.prompt_tokens + 4 <= 128


@pytest.mark.parametrize("name", ["qwen3", "mistral-v7"])
async def test_a_resent_history_is_cut_and_found_again(make_family: Make, tokenizer_of: Make, name: str) -> None:
    """Without a session: the cut stays where it was while the history grows, so that all before the new turn is KV that
    is there already."""
    engine, tokenizer = make_family(name, window=512), tokenizer_of(name)
    conversation: list[tuple[str, str]] = []
    cuts = []
    for turn in range(14):
        conversation.append(("user", f"turn {turn}: " + "z" * 24))
        messages = [{"role": role, "content": content} for role, content in conversation]
        async for chunk in engine.chat(messages, max_tokens=8, when_full="turns"):
            result = chunk.result
        usage = result.usage
        assert usage.prompt_tokens + usage.dropped_tokens == len(rendered(tokenizer, conversation))
        if cuts and usage.dropped_tokens == cuts[-1] > 0:
            assert usage.cached_tokens > usage.prompt_tokens - 100
        cuts.append(usage.dropped_tokens)
        # A client may keep what it likes of an answer; this one says the same each time.
        conversation.append(("assistant", "yes"))
    assert len(set(cuts)) > 2
    assert cuts == sorted(cuts)
    assert len(set(cuts)) < sum(cut > 0 for cut in cuts)
