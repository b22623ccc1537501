"""The public API as its users write it. Checked by mypy --strict, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import aiohttp
import httpx
import httpx2
import requests
from fastapi import FastAPI
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

import otelctx
from otelctx.inference import Guard, TransformersEngine, observe
from otelctx.testing import Attempt, FakeEngine, LinkPair, ManualClock, SeenLog, Sent, capture

TIER = otelctx.ContextKey("user.tier", str)
SPENT = otelctx.UpKey("usage.tokens.output", int, rule="sum")


def configure() -> None:
    handle = otelctx.configure("chat-api")
    handle.check()
    handle.shutdown()


def wrap(app: FastAPI, other: Any) -> None:
    app.add_middleware(otelctx.ContextMiddleware)
    asgi = otelctx.wrap(other)
    otelctx.wrap(asgi)


async def ask(url: str, body: dict[str, Any]) -> int | None:
    client = otelctx.instrument(httpx.AsyncClient())
    assert_type(client, httpx.AsyncClient)
    with otelctx.session("chat-42") as s, TIER.bound("gold"):
        await client.post(url, json=body)
        assert_type(TIER.get(), str | None)
        assert_type(TIER.get("free"), str)
        assert_type(SPENT.get(), int | None)
        return s.window.used if s.window else None


def ask_sync(url: str) -> httpx2.Client:
    token = TIER.set("gold")
    TIER.reset(token)
    SPENT.record(3)
    return otelctx.instrument(httpx2.Client(base_url=url))


async def other_clients(url: str) -> None:
    with requests.Session() as session:
        assert_type(otelctx.instrument(session), requests.Session)
        otelctx.instrument(session).post(url, json={"a": 1}).raise_for_status()
    async with aiohttp.ClientSession() as asession:
        assert_type(otelctx.instrument(asession), aiohttp.ClientSession)
        async with otelctx.instrument(asession).get(url) as response:
            await response.read()


def openai_client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, http_client=otelctx.instrument(DefaultAsyncHttpxClient()))


def answer(guard: Guard, messages: list[dict[str, Any]], generate: Any) -> Iterator[int]:
    with observe(model="mine") as turn:
        ids = guard.admit(messages, max_tokens=256)
        turn.prefill(len(ids))
        for token in generate(ids):
            turn.token()
            yield token
        turn.finish("stop")


async def chat(model: Any, tokenizer: Any, messages: list[dict[str, Any]]) -> AsyncIterator[str]:
    engine = TransformersEngine(model, tokenizer, window=4096, when_full="turns", rows=8)
    async for chunk in engine.chat(messages, session="s1", max_tokens=64):
        yield chunk.text


def serve(engine: TransformersEngine) -> Any:
    return otelctx.serving.app(engine)


def test(client: httpx.Client) -> None:
    with capture() as seen:
        client.post("/chat")
        assert seen.span("POST /chat").event("otelctx.truncation")
        assert_type(seen.logs, list[SeenLog])


def linked(app: Any) -> None:
    pair = LinkPair(clock=ManualClock())
    assert_type(pair.send(TIER.get, fault="other_worker"), Sent[str | None])
    assert_type(pair.send().attempts, tuple[Attempt, ...])
    assert_type(pair.asgi(app, method="GET", path="/chat").body, bytes)
    otelctx.serving.app(FakeEngine(window=64, clock=pair.clock))


@otelctx.keep_context
async def tokens(n: int) -> AsyncIterator[str]:
    yield str(n)


def kept(numbers: Iterator[int]) -> None:
    assert_type(tokens(3), AsyncIterator[str])
    assert_type(otelctx.keep_context(numbers), Iterator[int])
    assert_type(otelctx.in_context(len)("abc"), int)
