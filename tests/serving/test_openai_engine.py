"""The official client against a server with a real model (tiny, random): every way to call it, and exact counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from transformers import AutoTokenizer

import otelctx
from otelctx.exchange.node import Node
from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import load
from otelctx.settings import Settings

MODEL = "tiny"
WINDOW = 192
MESSAGES: Any = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Grüße \U0001f600"}]
GREEDY: Any = {"model": MODEL, "messages": MESSAGES, "max_completion_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def url(served: Any, tiny_model: Path) -> Iterator[str]:
    loaded = load(tiny_model, cache_dir=tiny_model)
    engine = TransformersEngine(
        loaded.model, loaded.tokenizer, window=WINDOW, rows=3, name=MODEL, eos_ids=loaded.eos_ids
    )
    with served(engine, node=Node(Settings(trusted_clients=("127.0.0.1",)))) as base:
        yield f"{base}/v1"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def prompt_ids(tiny_model: Path) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


def test_usage_is_exact_and_a_stream_says_the_same_as_one_piece(client: openai.OpenAI, prompt_ids: list[int]) -> None:
    whole = client.chat.completions.create(**GREEDY)
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len(prompt_ids)
    assert whole.usage.completion_tokens == 12
    assert whole.usage.total_tokens == len(prompt_ids) + 12
    *chunks, last = client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True})
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert [c.usage for c in chunks] == [None] * len(chunks)
    assert (last.choices, last.usage and last.usage.total_tokens) == ([], whole.usage.total_tokens)
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == len(prompt_ids) - 1


def test_text_completions_go_on_from_the_rendered_text_as_from_its_ids(
    client: openai.OpenAI, prompt_ids: list[int]
) -> None:
    chat = client.chat.completions.create(**GREEDY)
    answers = [
        client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, temperature=0)
        for prompt in (prompt_ids, [prompt_ids])
    ]
    for answer in answers:
        assert answer.object == "text_completion"
        assert answer.choices[0].text == chat.choices[0].message.content
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(prompt_ids)
    plain = client.completions.create(model=MODEL, prompt="abc", temperature=0)
    ids = client.completions.create(model=MODEL, prompt=[7], temperature=0)
    assert plain.usage is not None
    assert (plain.usage.prompt_tokens, plain.usage.completion_tokens <= 16) == (3, True)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 1


def test_several_prompts_are_answered_as_each_is_alone(client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "max_tokens": 6, "temperature": 0}
    prompts = ["one", "another", "a third", "and one more than there are rows"]
    alone = [client.completions.create(prompt=prompt, **options).choices[0].text for prompt in prompts]
    together = client.completions.create(prompt=prompts, **options)
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in together.choices] == alone
    assert together.usage is not None
    assert together.usage.prompt_tokens == sum(map(len, prompts))
    streamed: dict[int, str] = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(prompt=prompts, stream=True, **options):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert list(streamed.values()) == alone


def test_a_prompt_that_is_too_long_is_an_error_of_the_client_and_no_turn_of_the_others_is_left(
    client: openai.OpenAI,
) -> None:
    prompts: list[Any] = ["x" * WINDOW, [5] * WINDOW, ["fits", "x" * WINDOW]]
    for prompt in prompts:
        with pytest.raises(openai.BadRequestError) as raised:
            client.completions.create(model=MODEL, prompt=prompt)
        assert raised.value.code == "context_length_exceeded"
        assert raised.value.body is not None
    assert client.completions.create(model=MODEL, prompt="fits", max_tokens=1).usage is not None


def test_raw_and_streaming_responses_carry_the_request_id(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**GREEDY)
    parsed = raw.parse()
    assert raw.headers["content-type"] == "application/json"
    assert parsed._request_id == raw.request_id == raw.headers["x-request-id"]
    assert parsed._request_id is not None
    assert len(parsed._request_id) == 32
    with client.chat.completions.with_streaming_response.create(**GREEDY, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[0].startswith('data: {"id":"chatcmpl-')
    assert lines[-1] == "data: [DONE]"
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=MODEL, messages=[])
    assert raised.value.request_id is not None
    assert raised.value.request_id != raw.request_id


async def test_async_over_an_instrumented_http_client_brings_the_window_back(url: str) -> None:
    http = otelctx.instrument(openai.DefaultAsyncHttpxClient())
    assert isinstance(http, httpx2.AsyncClient)
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0, http_client=http) as client:
        with otelctx.session("chat-42") as session:
            answer = await client.chat.completions.create(**GREEDY)
            assert answer.usage is not None
            assert session.window is not None
            assert session.window.used == answer.usage.total_tokens
            stream = await client.chat.completions.create(**GREEDY, stream=True)
            text = "".join([c.choices[0].delta.content or "" async for c in stream])
            assert text == answer.choices[0].message.content


def test_a_session_keeps_the_conversation_and_the_body_says_how_full_it_is(client: openai.OpenAI) -> None:
    body = {"otelctx": {"session": "kept", "mode": "append", "when_full": "turns", "timeout": 60}}
    first = client.chat.completions.create(**GREEDY, extra_body=body)
    again: Any = GREEDY | {"messages": [{"role": "user", "content": "and?"}]}
    second = client.chat.completions.create(**again, extra_body=body)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens > first.usage.total_tokens
    assert second.model_extra is not None
    assert second.model_extra["otelctx"]["window"]["used"] == second.usage.total_tokens


def test_when_full_turns_cuts_a_conversation_that_is_sent_whole(client: openai.OpenAI) -> None:
    long: Any = [{"role": role, "content": "y" * 40} for role in ("user", "assistant") * 2]
    asked: Any = {"model": MODEL, "messages": [*long, {"role": "user", "content": "hi"}], "max_tokens": 4}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**asked)
    answer = client.chat.completions.create(**asked, extra_body={"otelctx": {"when_full": "turns"}})
    assert answer.model_extra is not None
    assert answer.model_extra["otelctx"]["dropped"] > 80


def test_a_timeout_ends_the_answer_where_it_is(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        **(GREEDY | {"max_completion_tokens": 100}), extra_body={"otelctx": {"timeout": 1e-9}}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.model_extra is not None
    assert answer.model_extra["otelctx"]["limit"] == "deadline"


def test_a_trusted_caller_that_waits_no_longer_gets_what_there_is(client: openai.OpenAI) -> None:
    """The body's own timeout does not extend the caller's deadline, which has passed."""
    answer = client.chat.completions.create(
        **(GREEDY | {"max_completion_tokens": 100}),
        extra_body={"otelctx": {"timeout": 60}},
        extra_headers={"otelctx-timeout-ms": "0"},
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.model_extra is not None
    assert answer.model_extra["otelctx"]["limit"] == "deadline"
