"""Where the demo reads exported spans back: the embedded receiver, or Jaeger's query API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from otelctx.testing.jaeger import JaegerQuery
from otelctx.testing.receiver import OtlpReceiver
from otelctx.testing.spans import SeenSpan

__all__ = ["Embedded", "Jaeger", "Source", "wait"]

_POLL: Final = 0.1  # seconds


class Source(Protocol):
    """Gives the spans of a trace that have arrived so far."""

    async def spans(self, trace_id: str) -> list[SeenSpan]: ...


async def wait(
    source: Source, trace_id: str, complete: Callable[[list[SeenSpan]], bool], within: float
) -> list[SeenSpan]:
    """The spans of ``trace_id`` once ``complete`` says so, or whatever there is after ``within`` seconds."""
    deadline = monotonic() + within
    while True:
        spans = await source.spans(trace_id)
        if complete(spans) or monotonic() > deadline:
            return spans
        await asyncio.sleep(_POLL)


class Embedded:
    """The receiver in this process."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    async def spans(self, trace_id: str) -> list[SeenSpan]:
        return self._receiver.spans(trace_id)


class Jaeger:
    """A Jaeger, asked from an event loop."""

    def __init__(self, query: JaegerQuery) -> None:
        self._query = query

    async def spans(self, trace_id: str) -> list[SeenSpan]:
        return await asyncio.to_thread(self._query.spans, trace_id)
