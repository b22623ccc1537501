"""The demo's client: the same conversation through httpx and through OpenAI's own package."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from opentelemetry import trace

from otelctx.clients.dispatch import instrument
from otelctx.demo.script import Turn

__all__ = ["Client", "Reply"]

_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


@dataclass(slots=True)
class Reply:
    """What the client was told. ``usage`` and ``extension`` are those of the answer, empty if there was none."""

    trace_id: str
    status: int = 200
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    extension: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)


class Client:
    """Calls the frontend at ``url``. Each call is a trace of its own, with a root span named after the step."""

    def __init__(self, url: str, model: str) -> None:
        self._model = model
        self._httpx = instrument(httpx.AsyncClient(base_url=f"{url}/v1/", timeout=120))
        self._openai = AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key="unused",
            max_retries=0,
            http_client=instrument(DefaultAsyncHttpxClient(timeout=120)),
        )
        self._tracer = trace.get_tracer("otelctx.demo")
        self._ways = {"httpx": self._by_httpx, "openai": self._by_openai, "openai, streamed": self._streamed}

    async def close(self) -> None:
        await self._httpx.aclose()
        await self._openai.close()

    async def say(self, turn: Turn) -> Reply:
        """Take one turn, the way it asks for."""
        with self._tracer.start_as_current_span(turn.name) as span:
            reply = Reply(trace.format_trace_id(span.get_span_context().trace_id))
            await self._ways[turn.via](turn, reply)
            return reply

    async def vanish(self, turn: Turn, after: int) -> Reply:
        """Ask for a stream, read ``after`` pieces of text and reset the connection: a process that died, not a task
        that was cancelled.
        """
        with self._tracer.start_as_current_span(turn.name) as span:
            reply = Reply(trace.format_trace_id(span.get_span_context().trace_id))
            body = self._body(turn) | {"stream": True}
            async with self._httpx.stream("POST", "chat/completions", json=body) as answer:
                reply.status = answer.status_code
                pieces = 0
                async for line in answer.aiter_lines():
                    pieces += '"content":"' in line and '"content":""' not in line
                    if pieces >= after:
                        break
                sock: socket.socket = answer.extensions["network_stream"].get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            return reply

    def _body(self, turn: Turn) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": turn.text}],
            "max_completion_tokens": turn.max_tokens,
            "temperature": 0,
        }

    async def _by_httpx(self, turn: Turn, reply: Reply) -> None:
        answer = await self._httpx.post("chat/completions", json=self._body(turn))
        reply.status = answer.status_code
        body = answer.json()
        reply.error = body.get("error") or {}
        if not reply.error:
            reply.text = body["choices"][0]["message"]["content"]
            reply.usage, reply.extension = body["usage"], body["otelctx"]

    async def _by_openai(self, turn: Turn, reply: Reply) -> None:
        answer = await self._openai.chat.completions.create(**self._body(turn))
        reply.text = answer.choices[0].message.content or ""
        reply.usage = answer.usage.model_dump() if answer.usage else {}
        reply.extension = (answer.model_extra or {})["otelctx"]

    async def _streamed(self, turn: Turn, reply: Reply) -> None:
        stream = await self._openai.chat.completions.create(
            **self._body(turn), stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            if chunk.choices:
                reply.text += chunk.choices[0].delta.content or ""
            if chunk.usage is not None:
                reply.usage = chunk.usage.model_dump()
            reply.extension = (chunk.model_extra or {}).get("otelctx", reply.extension)
