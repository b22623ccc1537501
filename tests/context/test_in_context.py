"""Work in other threads, in the context of who has given it to them."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from otelctx.context.current import ContextKey, UpKey, current_scope, session
from otelctx.context.keep import in_context
from otelctx.errors import ConfigError

TIER = ContextKey("in_context.tier", str)
SPENT = UpKey("in_context.spent", int, rule="sum")
VAR: ContextVar[str] = ContextVar("in_context.var", default="nobody's")


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test")


def session_here() -> str | None:
    scope = current_scope()
    return None if scope is None else scope.state.session_id


def test_work_in_a_thread_pool_has_the_context_of_who_submitted_it(
    tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    """contrib #1009, #737, weaviate #1653."""

    def work(n: int, *, gate: threading.Barrier | None = None) -> tuple[Any, ...]:
        if gate is not None:
            gate.wait()
        SPENT.record(n)
        with tracer.start_as_current_span("work"):
            return session_here(), TIER.get()

    with ThreadPoolExecutor(2) as pool, tracer.start_as_current_span("caller") as caller:
        assert pool.submit(work, 1).result() == (None, None)
        with session("s-1"), TIER.bound("gold"):
            kept = in_context(work)
            assert pool.submit(kept, 2).result() == ("s-1", "gold")
            together = in_context(functools.partial(work, gate=threading.Barrier(2)))
            assert list(pool.map(together, [3, 4])) == [("s-1", "gold")] * 2
            assert SPENT.get() == 9, "values go up from other threads, too"
        assert pool.submit(kept, 5).result() == ("s-1", "gold"), "it is the context of the time it was made at"
    parents = [
        span.parent.span_id if span.parent else None for span in exporter.get_finished_spans() if span.name == "work"
    ]
    assert parents == [None, *[caller.get_span_context().span_id] * 4]


async def test_run_in_executor_and_call_soon_take_it_too() -> None:
    loop = asyncio.get_running_loop()
    with session("s-1"):
        assert await loop.run_in_executor(None, in_context(session_here)) == "s-1"
        done: asyncio.Future[Any] = loop.create_future()
        threading.Thread(target=in_context(lambda: loop.call_soon_threadsafe(done.set_result, session_here()))).start()
        assert await done == "s-1"


def test_a_coroutine_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="task"):
        in_context(asyncio.sleep)


def test_a_generator_function_is_refused_as_its_body_runs_later() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(ConfigError, match="keep_context"):
        in_context(numbers)


def test_what_a_thread_sets_stays_there() -> None:
    def sets() -> None:
        VAR.set("the thread's")

    run: Callable[[], None] = in_context(sets)
    run()
    assert VAR.get() == copy_context().get(VAR, "nobody's") == "nobody's"
