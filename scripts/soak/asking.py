"""One request each way a client can make one, with its fate written into the ledger."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

import httpx
import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

import otelctx
from otelctx.exchange.node import Node
from otelctx.settings import Settings
from scripts.soak.ledger import BROKEN, GONE, UNPARSED, Asked, Ledger, outcome_of_answer, outcome_of_error
from scripts.soak.options import ID_HEADER

__all__ = ["MODEL", "PATIENCE", "Asking"]

MODEL: Final = "soak"
PATIENCE: Final = 90.0
"""Seconds that a client waits for the next that it is told: longer than any answer may take."""
_KEY: Final = "sk-soak"
_RESET: Final = struct.pack("ii", 1, 0)
_CHAT: Final = "/v1/chat/completions"
# Errors of a body that a parser found.
_PARSED: Final = (400, 413)

Body = dict[str, Any]


class Asking:
    """The clients of one worker at ``url``: OpenAI's own and httpx, both instrumented, and one for control."""

    def __init__(self, url: str, keys: str, ledger: Ledger) -> None:
        node = Node(Settings(keys=keys))
        headers = {"authorization": f"Bearer {_KEY}"}
        http = DefaultAsyncHttpxClient(timeout=PATIENCE)
        self._openai = AsyncOpenAI(
            base_url=f"{url}/v1", api_key=_KEY, max_retries=0, http_client=otelctx.instrument(http, node=node)
        )
        options: dict[str, Any] = {"base_url": url, "headers": headers, "timeout": PATIENCE, "trust_env": False}
        self._raw = otelctx.instrument(httpx.AsyncClient(**options), node=node)
        self.control = httpx.AsyncClient(**options)
        self._ledger = ledger

    async def close(self) -> None:
        await self._openai.close()
        await self._raw.aclose()
        await self.control.aclose()

    async def whole(self, asked: Asked, body: Body) -> None:
        """An answer in one piece."""
        try:
            answer: Any = await self._openai.chat.completions.create(**_call(asked, body))
        except openai.APIError as error:
            self._failed(asked, error)
        else:
            limit = (answer.model_extra or {}).get("otelctx", {}).get("limit")
            text = answer.choices[0].message.content
            self._ledger.close(asked, outcome_of_answer(limit), text=text)

    async def stream(self, asked: Asked, body: Body, pause: float = 0.0) -> None:
        """A stream, read to its end; ``pause`` seconds of not reading after each piece, two seconds in all."""
        parts: list[str] = []
        limit, ended, began, slept = None, False, time.monotonic(), 0.0
        try:
            stream: Any = await self._openai.chat.completions.create(**_call(asked, body), stream=True)
            async with stream:
                async for chunk in stream:
                    choice = chunk.choices[0] if chunk.choices else None
                    if choice is not None and choice.delta.content:
                        if asked.first is None:
                            asked.first = time.monotonic() - began
                        parts.append(choice.delta.content)
                    ended = ended or (choice is not None and choice.finish_reason is not None)
                    limit = (chunk.model_extra or {}).get("otelctx", {}).get("limit", limit)
                    if pause and slept < 2.0:
                        slept += pause
                        await asyncio.sleep(pause)
        except openai.APIError as error:
            self._failed(asked, error)
        else:
            fate = outcome_of_answer(limit) if ended else BROKEN
            self._ledger.close(asked, fate, text="".join(parts), detail="" if ended else "the stream had no end")

    async def reset(self, asked: Asked, body: Body, pieces: int) -> None:
        """Read some pieces of a stream, then reset the connection, as a killed process does."""
        try:
            async with self._raw.stream(
                "POST", _CHAT, json=_flat(body) | {"stream": True}, headers={ID_HEADER: asked.number}
            ) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    self._refused(asked, answer.status_code, answer.content)
                    return
                async for line in answer.aiter_lines():
                    pieces -= '"content":"' in line
                    if pieces < 0:
                        break
                self._ledger.close(asked, GONE)
                sock: socket.socket | None = answer.extensions["network_stream"].get_extra_info("socket")
                if sock is not None:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        except httpx.HTTPError as error:
            self._ledger.close(asked, BROKEN, detail=_chain(error))

    async def raw(self, asked: Asked, data: bytes) -> None:
        """A body that must be refused by the parser."""
        try:
            headers = {ID_HEADER: asked.number, "content-type": "application/json"}
            answer = await self._raw.post(_CHAT, content=data, headers=headers)
        except httpx.HTTPError as error:
            self._ledger.close(asked, BROKEN, detail=_chain(error))
        else:
            good = answer.status_code in _PARSED and "error" in answer.json()
            detail = f"{answer.status_code} {answer.text[:200]}"
            self._ledger.close(asked, UNPARSED if good else BROKEN, detail=detail)

    async def traced(self, asked: Asked, trace: str) -> None:
        """A short question in the trace ``trace`` (hex), asked by the client that adds nothing."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3}
        headers = {ID_HEADER: asked.number, "traceparent": f"00-{trace}-{trace[:16]}-01"}
        answer = await self.control.post(_CHAT, json=body, headers=headers)
        if answer.status_code == 200:
            self._ledger.close(asked, outcome_of_answer(answer.json()["otelctx"]["limit"]))
        else:
            self._refused(asked, answer.status_code, answer.content)

    async def cancelled(self, asked: Asked, call: Coroutine[Any, Any, None], after: float) -> None:
        """``call`` is cancelled after ``after`` seconds, unless it is over before."""
        task = asyncio.create_task(call)
        await asyncio.wait([task], timeout=after)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if asked.fate is None:
            self._ledger.close(asked, GONE)

    async def delete(self, session: str) -> int:
        """The status of deleting a session."""
        return (await self.control.delete(f"/v1/sessions/{session}")).status_code

    async def ask_worker(self, what: str, given: object = None) -> Any:
        """An answer under ``/soak/``."""
        return (await self.control.post(f"/soak/{what}", json=given)).raise_for_status().json()

    def _failed(self, asked: Asked, error: openai.APIError) -> None:
        if isinstance(error, openai.APIConnectionError):  # timeouts too
            self._ledger.close(asked, BROKEN, detail=_chain(error))
            return
        status = error.status_code if isinstance(error, openai.APIStatusError) else None
        fate = outcome_of_error(status, error.code, timed=asked.kind == "deadline")
        self._ledger.close(asked, fate, detail=f"{status} {error.code}: {error.message}")

    def _refused(self, asked: Asked, status: int, content: bytes) -> None:
        with suppress(ValueError, KeyError, AttributeError, TypeError):
            code = json.loads(content)["error"]["code"]
            self._ledger.close(asked, outcome_of_error(status, code), detail=f"{status} {code}")
            return
        self._ledger.close(asked, BROKEN, detail=f"{status} {content[:200]!r}")


def _call(asked: Asked, body: Body) -> dict[str, Any]:
    return {"model": MODEL, **body, "extra_headers": {ID_HEADER: asked.number}}


def _flat(body: Body) -> Body:
    """``body`` as it goes over the wire."""
    rest = {name: value for name, value in body.items() if name != "extra_body"}
    return {"model": MODEL, **rest, **body.get("extra_body", {})}


def _chain(error: BaseException | None) -> str:
    """An error with all that led to it."""
    found: list[str] = []
    while error is not None:
        found.append(repr(error))
        error = error.__cause__ or error.__context__
    return " ← ".join(found)
