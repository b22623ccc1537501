"""LangChain's ChatOpenAI and OpenAI, unchanged, against a server with a real model (tiny, random)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import SecretStr

from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import load

MODEL = "tiny"
ASKED = [SystemMessage("Be kind."), HumanMessage("hi"), AIMessage("hello"), HumanMessage("again")]


@pytest.fixture(scope="module")
def url(served: Any, tiny_model: Path) -> Iterator[str]:
    loaded = load(tiny_model, cache_dir=tiny_model)
    engine = TransformersEngine(loaded.model, loaded.tokenizer, window=192, rows=3, name=MODEL, eos_ids=loaded.eos_ids)
    with served(engine) as base:
        yield f"{base}/v1"


@pytest.fixture
def chat(url: str) -> Iterator[ChatOpenAI]:
    with openai.DefaultHttpxClient() as http:
        yield ChatOpenAI(
            model=MODEL,
            base_url=url,
            api_key=SecretStr("k"),
            temperature=0,
            max_completion_tokens=10,
            max_retries=0,
            stream_usage=True,
            http_client=http,
        )


def test_an_answer_has_its_usage_and_a_stream_adds_up_to_it(chat: ChatOpenAI) -> None:
    answer = chat.invoke(ASKED)
    assert isinstance(answer.content, str)
    assert answer.response_metadata["finish_reason"] == "length"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 10
    chunks = list(chat.stream(ASKED))
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    assert total.content == answer.content
    assert total.usage_metadata is not None
    assert total.usage_metadata["total_tokens"] == answer.usage_metadata["total_tokens"]


async def test_async_streams(url: str) -> None:
    async with openai.DefaultAsyncHttpxClient() as http:
        chat = ChatOpenAI(
            model=MODEL, base_url=url, api_key=SecretStr("k"), temperature=0, max_completion_tokens=10, max_retries=0,
            http_async_client=http,
        )  # fmt: skip
        answer = await chat.ainvoke(ASKED)
        assert "".join([str(chunk.content) async for chunk in chat.astream(ASKED)]) == answer.content


def test_a_stop_string_ends_the_answer_before_it(chat: ChatOpenAI) -> None:
    whole = str(chat.invoke(ASKED).content)
    stop = whole[3]
    stopped = chat.invoke(ASKED, stop=[stop])
    assert stopped.content == whole[: whole.index(stop)]
    assert stopped.response_metadata["finish_reason"] == "stop"


def test_too_long_a_conversation_is_known_as_such(chat: ChatOpenAI) -> None:
    """What LangChain's own fallbacks and summaries wait for."""
    with pytest.raises(ContextOverflowError):
        chat.invoke("x" * 500)


def test_what_this_server_cannot_do_is_a_clear_error(chat: ChatOpenAI) -> None:
    tool = {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}}
    with pytest.raises(openai.BadRequestError, match="tools is not supported by this server"):
        chat.bind_tools([tool]).invoke("hi")


def test_several_texts_go_in_one_request(url: str) -> None:
    with openai.DefaultHttpxClient() as http:
        llm = OpenAI(
            model=MODEL, base_url=url, api_key=SecretStr("k"), temperature=0, max_tokens=6, max_retries=0,
            http_client=http,
        )  # fmt: skip
        alone = [llm.invoke("one"), llm.invoke("another")]
        assert llm.batch(["one", "another"]) == alone
