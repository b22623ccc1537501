"""A client of one's own: context goes down with each call, usage and the state of the window come back up.

    otelctx serve smollm2 --port 8000            # in another terminal
    python examples/own_client.py http://127.0.0.1:8000/v1

Both sides need the same OTELCTX_KEYS; without them the calls work, and nothing of the context is believed.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

import otelctx

TIER = otelctx.ContextKey("user.tier", str)
SPENT = otelctx.UpKey("usage.tokens.output", int, rule="sum")


def append(session: str) -> dict[str, str]:
    """The worker keeps the history: each turn sends what is new. A session belongs to the API key that began it."""
    return {"session": session, "mode": "append"}


async def with_httpx(url: str, model: str) -> str:
    """httpx, as it is."""
    async with otelctx.instrument(httpx.AsyncClient(base_url=url, timeout=120)) as client:
        question = {"role": "user", "content": "Name a colour."}
        answer = await client.post(
            "/chat/completions",
            json={"model": model, "messages": [question], "max_tokens": 16, "otelctx": append("chat-42")},
        )
        return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])


async def with_openai(url: str, model: str) -> str:
    """OpenAI's own package, streamed; its HTTP client is instrumented the same way."""
    http_client = otelctx.instrument(DefaultAsyncHttpxClient(timeout=120))
    async with AsyncOpenAI(base_url=url, api_key="unused", http_client=http_client) as client:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "And another one."}],
            max_tokens=16,
            stream=True,
            extra_body={"otelctx": append("chat-43")},
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def first_model(url: str) -> str:
    async with httpx.AsyncClient(base_url=url) as client:
        models: dict[str, Any] = (await client.get("/models")).raise_for_status().json()
        return str(models["data"][0]["id"])


async def main(url: str) -> None:
    telemetry = otelctx.configure("own-client")
    model = await first_model(url)
    with otelctx.session("chat-42") as session, TIER.bound("gold"):
        print("httpx: ", await with_httpx(url, model))
        print("window:", session.window.used if session.window else None, "tokens used")
        print("tokens:", SPENT.get(), "so far")
    with otelctx.session("chat-43"):
        print("openai:", await with_openai(url, model))
    telemetry.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
