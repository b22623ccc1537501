"""A generator's own context, whoever takes its steps and however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otelctx.context.current import ContextKey, UpKey, current_scope, session
from otelctx.context.keep import keep_context
from otelctx.errors import ConfigError

TIER = ContextKey("keep.tier", str)
SPENT = UpKey("keep.spent", int, rule="sum")
VAR: ContextVar[str] = ContextVar("keep.var", default="nobody's")


class Traced:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")

    def ended(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def traced(caplog: pytest.LogCaptureFixture) -> Iterator[Traced]:
    """Nothing may be logged as an error: OpenTelemetry does so for a token of another context."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # what other tests have left behind is not to be found by the collections of these
    yield Traced()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def name() -> str:
    return getattr(trace.get_current_span(), "name", "none")


def seen() -> tuple[str, str | None, str | None, object]:
    scope = current_scope()
    return name(), None if scope is None else scope.state.session_id, TIER.get(), baggage.get_baggage("who")


INSIDE = ("inside", "s-1", "gold", "gen")


@contextlib.contextmanager
def everything(traced: Traced) -> Iterator[None]:
    """All that a generator may attach around its yields."""
    token = otel_context.attach(baggage.set_baggage("who", "gen"))
    try:
        with traced.tracer.start_as_current_span("inside"), session("s-1"), TIER.bound("gold"):
            yield
    finally:
        otel_context.detach(token)


async def numbers(traced: Traced, ends: list[Any], count: int = 4) -> AsyncGenerator[Any, Any]:
    with everything(traced):
        try:
            for n in range(count):
                with traced.tracer.start_as_current_span(f"step {n}"):
                    await asyncio.sleep(0)
                yield seen()
        finally:
            await asyncio.sleep(0)
            ends.append(seen())


def sync_numbers(traced: Traced, ends: list[Any], count: int = 4) -> Iterator[Any]:
    with everything(traced):
        try:
            for n in range(count):
                with traced.tracer.start_as_current_span(f"step {n}"):
                    pass
                yield seen()
        finally:
            ends.append(seen())


async def test_a_stream_that_is_read_after_its_endpoint_has_returned_has_its_span_and_its_session(
    traced: Traced,
) -> None:
    """langfuse #8216, pydantic-ai #4173, logfire #1688: a new root for each span, and empty baggage."""

    async def body() -> AsyncIterator[Any]:
        with traced.tracer.start_as_current_span("child"):
            yield seen()

    with traced.tracer.start_as_current_span("endpoint"), session("s-9"):
        stream = keep_context(body())
    assert [chunk async for chunk in stream] == [("child", "s-9", None, None)]
    (child,), (endpoint,) = traced.ended("child"), traced.ended("endpoint")
    assert child.parent.span_id == endpoint.context.span_id


@pytest.mark.parametrize("leave", ["end", "break", "return", "raise"])
async def test_a_loop_over_it_leaves_no_trace_in_the_loops_own_context(traced: Traced, leave: str) -> None:
    """openllmetry #3061, openinference #1769: a detach error when the consumer stops early."""
    ends: list[Any] = []

    async def consume() -> None:
        async for chunk in keep_context(numbers(traced, ends)):
            assert chunk == INSIDE
            assert seen() == ("outside", None, None, None)
            if leave == "break":
                break
            if leave == "return":
                return
            if leave == "raise":
                raise KeyError

    with traced.tracer.start_as_current_span("outside"):
        before = otel_context.get_current()
        with pytest.raises(KeyError) if leave == "raise" else contextlib.nullcontext():
            await consume()
        gc.collect()
        for _ in range(8):
            await asyncio.sleep(0)
        assert otel_context.get_current() is before
    assert ends == [INSIDE]
    assert len(traced.ended("inside")) == 1


async def test_it_is_closed_by_a_task_that_has_never_seen_it(traced: Traced) -> None:
    ends: list[Any] = []
    stream = keep_context(numbers(traced, ends))
    await asyncio.create_task(anext(stream), context=Context())
    await asyncio.create_task(stream.aclose(), context=Context())
    assert ends == [INSIDE]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert len(traced.ended("inside")) == 1


async def test_a_cancellation_goes_through_it_like_through_any_generator(traced: Traced) -> None:
    ends: list[Any] = []
    started = asyncio.Event()

    async def waits() -> AsyncIterator[int]:
        with everything(traced):
            try:
                started.set()
                await asyncio.Event().wait()
                yield 1
            finally:
                ends.append(seen())

    task = asyncio.create_task(anext(keep_context(waits())))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == [INSIDE]
    (span,) = traced.ended("inside")
    assert span.events == (), "a cancellation is no error"


async def test_values_and_exceptions_are_passed_in_and_results_out(traced: Traced) -> None:
    async def echo() -> AsyncGenerator[Any, Any]:
        got: Any = None
        while got != "stop":
            try:
                got = yield got
            except KeyError as error:
                got = error

    stream = keep_context(echo())
    assert inspect.isasyncgen(stream)
    assert await anext(stream) is None
    assert await stream.asend(7) == 7
    error = KeyError("x")
    assert await stream.athrow(error) is error
    assert error.__context__ is None
    with pytest.raises(StopAsyncIteration):
        await stream.asend("stop")


def test_a_sync_generator_returns_its_value_and_takes_what_is_sent(traced: Traced) -> None:
    def echo() -> Any:
        got: Any = None
        while got != "stop":
            try:
                got = yield got
            except KeyError as error:
                got = error
        return "done"

    stream = keep_context(echo())
    assert inspect.isgenerator(stream)
    assert next(stream) is None
    assert stream.send(7) == 7
    assert isinstance(stream.throw(KeyError()), KeyError)
    with pytest.raises(StopIteration) as stopped:
        stream.send("stop")
    assert stopped.value.value == "done"


@pytest.mark.parametrize("leave", ["end", "close", "drop", "throw"])
def test_a_sync_generator_keeps_its_context_in_every_thread(traced: Traced, leave: str) -> None:
    ends: list[Any] = []
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        streams = [keep_context(sync_numbers(traced, ends))]
        for pool in (one, two, one):
            assert pool.submit(next, streams[0]).result() == INSIDE
            assert pool.submit(seen).result() == ("none", None, None, None)
        if leave == "end":
            assert two.submit(list, streams[0]).result() == [INSIDE]
        elif leave == "close":
            two.submit(streams[0].close).result()
        elif leave == "throw":
            with pytest.raises(KeyError):
                two.submit(streams[0].throw, KeyError()).result()
        else:
            two.submit(streams.clear).result()
    assert ends == [INSIDE]
    assert len(traced.ended("inside")) == 1


async def test_two_steps_at_once_are_the_error_that_they_always_are(traced: Traced) -> None:
    ends: list[Any] = []
    stream = keep_context(numbers(traced, ends))
    results = await asyncio.gather(anext(stream), anext(stream), return_exceptions=True)
    assert results[0] == INSIDE
    assert isinstance(results[1], RuntimeError)
    assert "already running" in str(results[1])
    await stream.aclose()


async def test_timeouts_tasks_and_threads_inside_work_as_they_do_elsewhere(traced: Traced) -> None:
    async def body() -> AsyncIterator[Any]:
        with everything(traced):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(asyncio.sleep(0, None))
                inner = group.create_task(later())
            await task
            yield inner.result()
            yield await asyncio.to_thread(seen)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            yield asyncio.current_task()

    async def later() -> Any:
        return seen()

    assert [chunk async for chunk in keep_context(body())] == [INSIDE, INSIDE, asyncio.current_task()]


async def test_the_decorator_copies_the_context_of_the_call_and_not_of_the_first_step(traced: Traced) -> None:
    @keep_context
    async def stream() -> AsyncIterator[str]:
        """Documented."""
        yield VAR.get()

    token = VAR.set("the caller's")
    made = stream()
    VAR.reset(token)
    assert [v async for v in made] == ["the caller's"]
    assert (stream.__name__, stream.__doc__) == ("stream", "Documented.")
    assert inspect.isasyncgenfunction(inspect.unwrap(stream))

    class Holder:
        @keep_context
        def count(self, n: int) -> Iterator[int]:
            yield from range(n)

    assert list(Holder().count(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    "wrong", [3, [1, 2], len, asyncio.sleep], ids=["a number", "a list", "a builtin", "a function"]
)
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="yield"):
        keep_context(wrong)


class Leaver:
    """A context manager that is no generator, so that nobody but its ``with`` leaves it."""

    def __enter__(self) -> None:
        self._token = VAR.set("the generator's")

    def __exit__(self, *_: object) -> None:
        VAR.reset(self._token)


@pytest.mark.parametrize("cycle", [False, True], ids=["dropped", "in a cycle"])
async def test_the_garbage_collector_ends_it_in_its_own_context(traced: Traced, cycle: bool) -> None:
    """otel-python #2606. In a cycle both generators are finalised, in any order: still it is ended once."""
    ends: list[Any] = []

    async def body() -> AsyncIterator[int]:
        with Leaver(), session("s-1"):
            try:
                yield 1
            finally:
                await asyncio.sleep(0)
                ends.append(VAR.get())

    async def begin() -> None:
        stream = keep_context(body())
        await anext(stream)
        if cycle:
            around: list[Any] = [stream]
            around.append(around)

    await asyncio.create_task(begin(), context=Context())
    gc.collect()
    for _ in range(8):
        await asyncio.sleep(0)
    assert ends == ["the generator's"]
    assert VAR.get() == "nobody's"


def test_a_loop_that_ends_ends_what_is_left_of_it(traced: Traced) -> None:
    ends: list[Any] = []
    kept: list[Any] = []

    async def main() -> None:
        kept.append(keep_context(numbers(traced, ends)))
        await anext(kept[0])

    asyncio.run(main())
    assert ends == [INSIDE]
    assert len(traced.ended("inside")) == 1


@pytest.mark.parametrize("cycle", [False, True])
def test_without_a_loop_it_is_ended_at_once(traced: Traced, cycle: bool) -> None:
    ends: list[Any] = []

    async def body() -> AsyncIterator[int]:
        with Leaver():
            try:
                yield 1
            finally:
                ends.append(VAR.get())

    loop = asyncio.new_event_loop()
    made: list[Any] = [keep_context(body())]
    loop.run_until_complete(anext(made[0]))
    loop.close()
    if cycle:
        made.append(made)
    del made
    gc.collect()
    assert ends == ["the generator's"]
