"""``POST /v1/chat/completions``, in one piece or as a stream of server-sent events.

Errors before the first token are JSON with a status, also for a request that asked for a stream; later ones are an
event in it. When the client goes away, closing the engine's iterator takes the turn back.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from time import time
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from otelctx.asgi.middleware import EXCHANGE
from otelctx.asgi.owner import owner_of
from otelctx.context.current import current_scope
from otelctx.errors import OtelctxError
from otelctx.inference.engines.base import Engine
from otelctx.inference.turn import Chunk, TurnResult
from otelctx.serving import body, parse
from otelctx.serving.answers import reply
from otelctx.serving.disconnect import Disconnected, watched
from otelctx.serving.models import require
from otelctx.serving.parse import ChatRequest
from otelctx.serving.wire import DONE, Completion, event, extension

__all__ = ["ChatCompletions"]

_log = logging.getLogger(__name__)

_PRIORITY: Final = "request.priority"
_STREAM_HEAD: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the events back
]


class ChatCompletions:
    """An ASGI application for the route."""

    def __init__(self, engine: Engine, *, max_body: int = body.MAX_BODY) -> None:
        """``max_body``: bytes of a request's body that are read at most."""
        self._engine = engine
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            data = body.decode(await body.read(scope, receive, self._max_body))
            request = _request(scope, data)
            require(self._engine, request.model)
            async with watched(receive):
                await self._answer(request, scope, receive, send)
        except (ClientDisconnect, Disconnected):
            return

    async def _answer(self, request: ChatRequest, scope: Scope, receive: Receive, send: Send) -> None:
        completion = Completion(f"chatcmpl-{uuid.uuid4().hex}", int(time()), self._engine.name)
        async with (
            aclosing(await self._engine.admit(request.turn)) as admitted,
            aclosing(admitted.chunks()) as chunks,
        ):
            if not request.turn.stream:
                answer = await _whole(completion, chunks)
            else:
                # Nothing is sent before there is something to say: until then an error can still have a status.
                first = await anext(chunks)
                await _Stream(completion, request.include_usage, scope, send).run(first, chunks)
                return
        await answer(scope, receive, send)


async def _whole(completion: Completion, chunks: AsyncIterator[Chunk]) -> Response:
    parts: list[str] = []
    result: TurnResult | None = None
    async for chunk in chunks:
        parts.append(chunk.text)
        result = chunk.result
    if result is None:
        raise RuntimeError("the engine ended without a result")
    return reply(completion.whole("".join(parts), result))


class _Stream:
    """The events of one answer."""

    def __init__(self, completion: Completion, include_usage: bool, scope: Scope, send: Send) -> None:
        self._completion = completion
        self._include_usage = include_usage
        self._scope = scope
        self._send = send

    async def run(self, first: Chunk, chunks: AsyncIterator[Chunk]) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": list(_STREAM_HEAD)})
        try:
            await self._write(event(self._completion.first()))
            await self._chunk(first)
            async for chunk in chunks:
                await self._chunk(chunk)
        except OtelctxError as error:
            await self._write(event(error.body()), last=True)
        except OSError as error:  # how some servers say that the client has gone
            raise Disconnected from error
        except Exception:
            _log.exception("a stream failed")
            await self._write(event(_INTERNAL.body()), last=True)

    async def _chunk(self, chunk: Chunk) -> None:
        if chunk.text:
            await self._write(event(self._completion.text(chunk.text)))
        if chunk.result is not None:
            await self._end(chunk.result)

    async def _end(self, result: TurnResult) -> None:
        last = self._completion.finish(result.finish_reason)
        if self._include_usage:
            await self._write(event(last))
            last = self._completion.usage(result.usage)
        last["otelctx"] = extension(result, _final_ack(self._scope))
        await self._write(event(last) + DONE, last=True)

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})


_INTERNAL: Final = OtelctxError("the server failed at this request", code="internal_error")


def _request(scope: Scope, data: dict[str, Any]) -> ChatRequest:
    context = current_scope()
    state = context.state if context is not None else {}
    session = state.get("session.id")
    priority = state.get(_PRIORITY, 0)
    return parse.chat(
        data,
        owner=owner_of(scope),
        context_session=session if isinstance(session, str) else None,
        priority=priority if type(priority) is int else 0,
    )


def _final_ack(scope: Scope) -> str | None:
    """What the caller's context learns at the end of a stream, whose head has long been sent."""
    exchange = scope.get(EXCHANGE)
    return None if exchange is None else exchange.final_ack()
