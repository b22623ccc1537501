"""What every application of the matrix calls: its handlers report what they see, and misbehave in the same ways.

A handler says :func:`enter` first. It notes what the handler sees of trace, baggage and session, and then leaves an
attached Context behind, as careless code does; the next request must see nothing of that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from opentelemetry import baggage, context, trace

from otelctx.context.current import ContextKey, current_scope
from otelctx.errors import Overloaded

TIER = ContextKey("matrix.tier", str, visibility="public")
PROMPT = ContextKey("matrix.prompt", str)
LEAKED = "leaked"
PIECES = (b"one\n", b"two\n", b"three\n")
EVENTS = (b"data: one\n\n", b"data: two\n\n", b"data: three\n\n")
TICK = b"data: tick\n\n"
FILE = Path(os.environ.get("MATRIX_FILE", __file__))
SIZE = FILE.stat().st_size
PATIENCE = 60.0  # seconds; a handler that nobody lets go of gives up by itself
PAUSE = 0.003  # seconds

_TASKS: set[asyncio.Task[None]] = set()

# The record of the request that is being handled; set outside of the middleware.
call: ContextVar[dict[str, Any]] = ContextVar("matrix_call")


class Boom(Exception):
    """What handlers raise. Frameworks know nothing of it."""


def enter() -> dict[str, Any]:
    """Note what the handler sees, and leave something behind. Returns the note, fit for JSON."""
    span = trace.get_current_span().get_span_context()
    scope = current_scope()
    seen = {
        "trace_id": f"{span.trace_id:032x}",
        "span_id": f"{span.span_id:016x}",
        "baggage": {name: str(value) for name, value in baggage.get_all().items()},
        "session": None if scope is None else scope.state.session_id,
        "tier": TIER.get(),
    }
    call.get()["seen"].append(seen)
    context.attach(baggage.set_baggage(LEAKED, "yes"))
    return seen


def mark(what: str) -> None:
    """Note that the handler has got so far; tests wait for it."""
    call.get()["marks"].append(what)


def touch() -> None:
    """Note the span that is current, which during a stream must still be the request's."""
    call.get()["during"].append(f"{trace.get_current_span().get_span_context().span_id:016x}")


def work() -> None:
    """Work after the last byte: a span of its own."""
    with trace.get_tracer("matrix").start_as_current_span("work"):
        pass
    mark("worked")


async def pieces(parts: tuple[bytes, ...] = PIECES, *, fail: bool = False) -> AsyncIterator[bytes]:
    """A streamed body; ``fail``: after the first piece comes an exception."""
    for part in parts:
        touch()
        yield part
        await asyncio.sleep(0)
        if fail:
            raise Boom("in the stream")


async def endless() -> AsyncIterator[bytes]:
    """Events until whoever reads them stops. ``x-style: idle``: one, and then nothing; ``large``: of 64 KiB each."""
    style = call.get()["style"]
    piece = TICK * 5958 if style == "large" else TICK
    for _ in range(int(PATIENCE / PAUSE)):
        touch()
        yield piece
        await (forever() if style == "idle" else asyncio.sleep(PAUSE))


async def forever() -> None:
    """Wait for something that never comes; only a cancellation ends it."""
    mark("waiting")
    await asyncio.sleep(PATIENCE)


async def later() -> None:
    """Work that outlives the call of the application."""
    record = call.get()
    for _ in range(int(PATIENCE / PAUSE)):
        if record["outcome"] is not None:
            break
        await asyncio.sleep(PAUSE)
    work()


def let_go() -> None:
    """Start :func:`later` as a task of nobody's."""
    task = asyncio.create_task(later())
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)


def overloaded() -> None:
    """An error of ours, which has a status and says when to come again."""
    raise Overloaded("full", retry_after=3)


# Applications of their own, for what the frameworks have no words for; mounted where a framework takes ASGI.


async def trailers(scope: Any, receive: Any, send: Any) -> None:
    enter()
    await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
    await send({"type": "http.response.body", "body": b"body", "more_body": True})
    await send({"type": "http.response.body", "body": b""})
    await send({"type": "http.response.trailers", "headers": [(b"x-sum", b"42")], "more_trailers": False})


async def hints(scope: Any, receive: Any, send: Any) -> None:
    enter()
    await send({"type": "http.response.early_hint", "links": [b"</style.css>; rel=preload"]})
    await answer(send, 200, b"hinted")


async def file(scope: Any, receive: Any, send: Any) -> None:
    """The file as the server sends it by itself."""
    enter()
    headers = [(b"content-length", str(SIZE).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.pathsend", "path": str(FILE)})


async def answer(send: Any, status: int, body: bytes, kind: bytes = b"text/plain") -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
