"""The routes that answer with tokens: in one piece or as a stream of server-sent events.

Errors before the first token are JSON with a status, also for a request that asked for a stream; later ones are an
event in it. When the client goes away, closing the engine's iterators takes the turns back.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from time import monotonic, time
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from otelctx.asgi.owner import owner_of
from otelctx.context.current import current_scope
from otelctx.inference.engines.base import Engine
from otelctx.inference.turn import Chunk, TurnResult
from otelctx.serving import body
from otelctx.serving.answers import reply
from otelctx.serving.disconnect import Disconnected, watched
from otelctx.serving.events import EventStream
from otelctx.serving.merge import merged
from otelctx.serving.models import require
from otelctx.serving.parse import Caller, CompletionRequest
from otelctx.serving.wire import Form

__all__ = ["Generate"]

_PRIORITY: Final = "request.priority"
_SESSION: Final = "session.id"

Parse = Callable[[Mapping[str, Any], Caller], CompletionRequest]
Chunks = AsyncGenerator[tuple[int, Chunk], None]


class Generate:
    """An ASGI application for one route: ``parse`` says what a body asks for, ``form`` how the answer looks."""

    def __init__(self, engine: Engine, parse: Parse, form: type[Form], limits: body.Limits) -> None:
        self._engine = engine
        self._parse = parse
        self._form = form
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body.check_type(scope)
            data = body.decode(await body.read(scope, receive, self._limits))
            request = self._parse(data, _caller(scope))
            require(self._engine, request.model)
            async with watched(receive):
                await self._answer(request, scope, receive, send)
        except (ClientDisconnect, Disconnected):
            return

    async def _answer(self, request: CompletionRequest, scope: Scope, receive: Receive, send: Send) -> None:
        form = self._form(uuid.uuid4().hex, int(time()), self._engine.name, request.include_usage)
        async with AsyncExitStack() as stack:
            sources = []
            for turn in request.turns:
                named = replace(turn, response_id=form.response_id)
                admitted = await stack.enter_async_context(aclosing(await self._engine.admit(named)))
                sources.append(await stack.enter_async_context(aclosing(admitted.chunks())))
            chunks = await stack.enter_async_context(aclosing(merged(sources)))
            if request.stream:
                # Nothing is sent before there is something to say: until then an error can still have a status.
                first = await anext(chunks)
                await EventStream(form, len(sources), scope, send).run(first, chunks)
                return
            answer = await _whole(form, len(sources), chunks)
        await answer(scope, receive, send)


async def _whole(form: Form, count: int, chunks: Chunks) -> Response:
    parts: list[list[str]] = [[] for _ in range(count)]
    results: dict[int, TurnResult] = {}
    async for index, chunk in chunks:
        parts[index].append(chunk.text)
        if chunk.result is not None:
            results[index] = chunk.result
    if len(results) < count:
        raise RuntimeError("the engine ended without a result")
    return reply(form.whole(["".join(texts) for texts in parts], [results[index] for index in range(count)]))


def _caller(scope: Scope) -> Caller:
    context = current_scope()
    state = context.state if context is not None else {}
    session, priority = state.get(_SESSION), state.get(_PRIORITY, 0)
    return Caller(
        owner_of(scope),
        session if isinstance(session, str) else None,
        priority if type(priority) is int else 0,
        None if context is None or context.deadline is None else max(0.0, context.deadline - monotonic()),
    )
