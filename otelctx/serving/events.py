"""A stream of server-sent events: the answer's pieces, its end, and an error in the middle of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from time import time
from typing import Final

from starlette.types import Scope, Send

from otelctx.asgi.middleware import exchange_of
from otelctx.errors import OtelctxError
from otelctx.inference.turn import Chunk, TurnResult
from otelctx.serving.disconnect import Disconnected
from otelctx.serving.wire import DONE, Form, event, extension

__all__ = ["EventStream"]

_log = logging.getLogger(__name__)

_HEAD: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the events back
]
_INTERNAL: Final = OtelctxError("the server failed at this request", code="internal_error")


class EventStream:
    """The events of one answer of ``count`` choices."""

    def __init__(self, form: Form, count: int, scope: Scope, send: Send) -> None:
        self._form = form
        self._count = count
        self._results: dict[int, TurnResult] = {}
        self._scope = scope
        self._send = send

    async def run(self, first: tuple[int, Chunk], chunks: AsyncIterator[tuple[int, Chunk]]) -> None:
        """Send all of it; ``first`` comes before ``chunks``. Raises :class:`Disconnected`; other errors become the
        last event."""
        await self._send({"type": "http.response.start", "status": 200, "headers": list(_HEAD)})
        try:
            for index in range(self._count):
                if (opening := self._form.opening(index)) is not None:
                    await self._write(event(self._form.chunk(opening)))
            await self._chunk(*first)
            async for index, chunk in chunks:
                await self._chunk(index, chunk)
        except OtelctxError as error:
            await self._write(event(error.body()), last=True)
        except OSError as error:  # how some servers say that the client has gone
            raise Disconnected from error
        except Exception:
            _log.exception("a stream failed")
            await self._write(event(_INTERNAL.body()), last=True)

    async def _chunk(self, index: int, chunk: Chunk) -> None:
        form = self._form
        if chunk.text:
            await self._write(event(form.chunk(form.piece(index, chunk.text))))
        if chunk.result is None:
            return
        self._results[index] = chunk.result
        end = form.chunk(form.piece(index, "", chunk.result.finish_reason))
        if len(self._results) < self._count:
            await self._write(event(end))
        else:
            await self._end(end)

    async def _end(self, last: dict[str, object]) -> None:
        results = [self._results[index] for index in range(self._count)]
        if self._form.usage:
            await self._write(event(last))
            last = self._form.used(results)
        last["otelctx"] = extension(results, _final_ack(self._scope))
        await self._write(event(last) + DONE, last=True)

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})


def _final_ack(scope: Scope) -> str | None:
    """What the caller's context learns at the end of a stream, whose head has long been sent."""
    exchange = exchange_of(scope)
    return None if exchange is None else exchange.final_ack(time())
