"""Several consumers at several generators, in any order: nobody sees anything of the others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncGenerator
from contextvars import Context
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otelctx.context.current import ContextKey, current_scope, session, snapshot
from otelctx.context.keep import keep_context

TIER = ContextKey("keep.interleaved.tier", str)


class Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class World:
    """``count`` generators, each made under a span of its own."""

    def __init__(self, count: int) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")
        self.started: set[int] = set()
        self.parents: dict[int, int] = {}
        self.wrong: list[Any] = []
        self.streams: list[Any] = []
        for n in range(count):
            with self.tracer.start_as_current_span(f"parent {n}") as parent:
                self.parents[n] = parent.get_span_context().span_id
                self.streams.append(keep_context(self.body(n)))

    async def body(self, n: int) -> AsyncGenerator[int, Any]:
        self.started.add(n)
        with (
            self.tracer.start_as_current_span(f"gen {n}") as span,
            session(f"s-{n}"),
            TIER.bound(f"t-{n}"),
        ):
            token = otel_context.attach(baggage.set_baggage("n", str(n)))
            try:
                for step in range(3):
                    with self.tracer.start_as_current_span(f"step {n}"):
                        await asyncio.sleep(0)
                    self.check(n, span)
                    with contextlib.suppress(KeyError):
                        yield step
                    self.check(n, span)
            finally:
                await asyncio.sleep(0)
                self.check(n, span)
                otel_context.detach(token)

    def check(self, n: int, span: Any) -> None:
        scope = current_scope()
        found = (
            trace.get_current_span() is span,
            scope is not None and scope.state.session_id == f"s-{n}",
            TIER.get() == f"t-{n}",
            baggage.get_baggage("n") == str(n),
        )
        if not all(found):
            self.wrong.append((n, found))

    async def act(self, n: int, action: str) -> None:
        """One action of a consumer, which has a span and a session of its own and must find them unchanged."""
        with self.tracer.start_as_current_span("consumer"), session("consumer"):
            context, state = otel_context.get_current(), snapshot()
            with contextlib.suppress(StopAsyncIteration, RuntimeError, LookupError, asyncio.CancelledError):
                await self._act(n, action)
            if otel_context.get_current() is not context or snapshot() != state:
                self.wrong.append((n, action, "the consumer's context has changed"))

    async def _act(self, n: int, action: str) -> None:
        stream = self.streams[n]
        if stream is None:
            return
        if action == "next":
            await anext(stream)
        elif action == "send":
            await stream.asend(None)
        elif action == "throw":
            await stream.athrow(KeyError())
        elif action == "fail":
            await stream.athrow(LookupError())
        elif action == "close":
            await stream.aclose()
        elif action == "loop":
            async for _ in stream:
                break
        else:
            self.streams[n] = stream = None
            gc.collect(0)

    def settled(self) -> None:
        spans = self.exporter.get_finished_spans()
        for n in self.started:
            (span,) = [s for s in spans if s.name == f"gen {n}"]
            assert span.parent is not None
            assert span.parent.span_id == self.parents[n]
            steps = [s for s in spans if s.name == f"step {n}"]
            assert steps
            assert all(s.parent is not None and s.parent.span_id == span.context.span_id for s in steps)
        assert self.wrong == []


ACTIONS = st.sampled_from(["next", "next", "next", "send", "throw", "fail", "close", "loop", "drop"])
# which generator, what is done, in a task of its own or here, and after how many turns of the loop it is cancelled
MOVES = st.lists(
    st.tuples(st.integers(0, 1), ACTIONS, st.booleans(), st.none() | st.integers(0, 3)), min_size=1, max_size=12
)


@given(MOVES)
def test_in_any_order_of_steps_cancellations_and_ends(moves: list[tuple[int, str, bool, int | None]]) -> None:
    errors = Errors()
    logger = logging.getLogger("opentelemetry.context")
    logger.addHandler(errors)
    world = World(2)

    async def main() -> None:
        tasks = []
        for n, action, own_task, cancel in moves:
            if not own_task:
                await world.act(n, action)
                continue
            task = asyncio.create_task(world.act(n, action), context=Context())
            tasks.append(task)
            if cancel is not None:
                for _ in range(cancel):
                    await asyncio.sleep(0)
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        world.streams.clear()
        for _ in range(8):
            await asyncio.sleep(0)

    try:
        asyncio.run(main())
    finally:
        logger.removeHandler(errors)
    world.settled()
    assert errors.messages == []
