"""The clients against the real model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import load

pytestmark = pytest.mark.model
MODEL = "smollm2"
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def url(served: Any) -> Iterator[str]:
    pytest.importorskip("gguf")
    cache = Path(os.environ.get("OTELCTX_CACHE_DIR", Path.home() / ".cache" / "otelctx"))
    loaded = load(MODEL, cache_dir=cache)
    engine = TransformersEngine(loaded.model, loaded.tokenizer, window=1024, rows=2, name=MODEL, eos_ids=loaded.eos_ids)
    with served(engine) as base:
        yield f"{base}/v1"


def test_chat_and_text_say_the_same_of_the_same_tokens(url: str) -> None:
    options: Any = {"model": MODEL, "temperature": 0, "max_tokens": 24}
    rendered = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    )
    with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
        chat = client.chat.completions.create(messages=[{"role": "user", "content": QUESTION}], **options)
        text = client.completions.create(prompt=rendered, **options)
    assert "Paris" in (chat.choices[0].message.content or "")
    assert chat.usage is not None
    assert text.usage is not None
    # A prompt is text to go on from: what spells a special token in it is that token only in a rendered chat.
    assert text.usage.prompt_tokens >= chat.usage.prompt_tokens


def test_langchain_streams_what_it_gets_in_one_piece(url: str) -> None:
    with openai.DefaultHttpxClient() as http:
        chat = ChatOpenAI(
            model=MODEL, base_url=url, api_key=SecretStr("k"), temperature=0, max_completion_tokens=24, max_retries=0,
            http_client=http,
        )  # fmt: skip
        whole = chat.invoke(QUESTION).content
        assert "Paris" in whole
        assert "".join(str(chunk.content) for chunk in chat.stream(QUESTION)) == whole
