"""What outlives a request, or comes after its answer: it is told of, holds nothing, and nobody complains of it."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import os
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import Span, SpanProcessor
from opentelemetry.trace import NoOpTracerProvider, StatusCode

from otelctx.asgi.headers import Inbound
from otelctx.asgi.middleware import ContextMiddleware
from otelctx.asgi.server_span import ServerSpan
from otelctx.context.scope import Scope

PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


async def test_work_after_a_denial_is_on_a_linked_span(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        raise LookupError("after")

    r = rig(app)
    with pytest.raises(LookupError):
        await r.websocket("/ws", [])
    server, background = r.spans
    assert (server.name, server.attributes["http.response.status_code"]) == ("GET", 403)
    assert (server.status.status_code, server.events) == (StatusCode.UNSET, ())
    assert (background.name, background.attributes["error.type"]) == ("GET background", "LookupError")
    assert ([e.name for e in background.events], background.status.status_code) == (["exception"], StatusCode.ERROR)
    assert [link.context.span_id for link in background.links] == [server.context.span_id]
    assert caplog.records == []


async def late(go: asyncio.Event, seen: list[Any]) -> None:
    await go.wait()
    span = trace.get_current_span()
    span.set_attribute("late", True)
    span.record_exception(ValueError("late"))
    seen.append(span.is_recording())
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    seen.append("traceparent" in carrier)


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_task_that_outlives_its_request_records_nothing_and_no_log_complains(
    rig: Any, ok: Any, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    tasks: list[asyncio.Task[None]] = []
    seen: list[Any] = []
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if kind == "http":
            await ok(send)
        else:
            await receive()
            await send({"type": "websocket.accept"})
        tasks.append(asyncio.create_task(late(go, seen)))

    r = rig(app)
    await (r.request() if kind == "http" else r.websocket("/ws", []))
    go.set()
    await tasks[0]
    assert seen == [False, True]
    assert caplog.records == []
    before, background = r.spans[-2:]
    assert background.name == "GET background"
    assert [link.context.span_id for link in background.links] == [before.context.span_id]


async def test_a_task_that_outlives_its_request_holds_none_of_its_headers(rig: Any, ok: Any) -> None:
    """A connection pool that the first request has started lives as long as the process, and has its Context."""
    tasks: list[asyncio.Task[None]] = []
    never = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        tasks.append(asyncio.create_task(late(never, [])))
        await ok(send)

    r = rig(app)
    await r.request(headers={"authorization": "Bearer of-this-test"})
    r.last_scope = {}
    gc.collect()
    held = [o for o in gc.get_objects() if type(o) is Inbound and o.get(b"authorization") == b"Bearer of-this-test"]
    assert held == []
    tasks[0].cancel()


async def test_where_measurements_alone_are_kept_the_trace_goes_on_after_the_last_byte(rig: Any, ok: Any) -> None:
    """There is nobody to start a linked span, and one that is started all the same has no ids."""
    seen: list[dict[str, str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)
        seen.append({})
        propagate.inject(seen[-1])

    r = rig(app)
    r.app = ContextMiddleware(app, tracer_provider=NoOpTracerProvider(), meter_provider=r.meters)
    await r.request(headers=PARENT)
    assert seen == [PARENT]
    assert r.point()["http.response.status_code"] == 200


async def test_a_group_of_cancellations_is_a_cancellation(rig: Any) -> None:
    """Trio makes one of several."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise BaseExceptionGroup("cancelled", [asyncio.CancelledError(), asyncio.CancelledError()])

    r = rig(app)
    with pytest.raises(BaseExceptionGroup):
        await r.request()
    assert (r.span.status.status_code, r.span.events) == (StatusCode.UNSET, ())
    assert "error.type" not in r.point()


async def test_telemetry_that_fails_neither_fails_a_request_nor_leaves_it_active(
    rig: Any, ok: Any, monkeypatch: Any
) -> None:
    from otelctx.asgi import entry

    def fails(*args: object, **kwargs: object) -> None:
        raise OSError("a processor of somebody else")

    monkeypatch.setattr(entry.events, "emit", fails)
    r = rig(lambda scope, receive, send: ok(send))
    assert (await r.request(headers={"otelctx": "1.AAAA"})).status == 200
    assert len(r.spans) == 1
    assert r.point()["http.response.status_code"] == 200


def test_an_exception_that_comes_after_the_end_is_not_kept(rig: Any) -> None:
    r = rig(None)
    tracer = r.tracers.get_tracer("x")
    own = tracer.start_span("GET")
    seen = ServerSpan(own)
    own.end()
    seen.ended(tracer, "GET", Scope())
    seen.close()
    seen.record_exception(ValueError("late"))
    assert seen.recorded is None


def test_the_span_that_an_application_sees_can_be_copied(rig: Any) -> None:
    own = rig(None).tracers.get_tracer("x").start_span("GET")
    seen = copy.copy(ServerSpan(own))
    assert (seen.get_span_context(), seen.name) == (own.get_span_context(), "GET")
    assert not hasattr(seen, "no_such_thing")


async def test_a_framework_that_uses_names_of_another_ones_costs_its_route_and_no_answer(rig: Any, ok: Any) -> None:
    class Router:
        def routes(self) -> list[str]:
            return ["/"]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope.update(router=Router(), endpoint=app, route=object(), fastapi={"effective_route_context": 7})
        await ok(send)

    r = rig(app)
    assert (await r.request()).body == b"ok"
    assert (r.span.name, "http.route" in r.point()) == ("GET", False)


class Asking(SpanProcessor):
    """Looks at the current span whenever one starts, as the SDK's own counters do for their exemplars."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self.seen.append(trace.get_current_span().get_span_context().span_id)


async def test_what_asks_for_the_current_span_while_the_linked_one_starts_is_answered(rig: Any, ok: Any) -> None:
    """It would wait for itself, and the whole server with it."""
    asking = Asking()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)
        trace.get_current_span().set_attribute("late", True)

    r = rig(app)
    r.tracers.add_span_processor(asking)
    await r.request()
    request, background = r.spans
    assert background.attributes["late"] is True
    assert asking.seen[-1] == request.context.span_id


class Holding(SpanProcessor):
    """Where a span starts it waits for another thread, which wants the current span first."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        if "background" in span.name:
            current = contextvars.copy_context()
            other = threading.Thread(target=current.run, args=(self.ask,))
            other.start()
            other.join(60)

    def ask(self) -> None:
        self.found.append(trace.get_current_span().get_span_context().span_id)


async def test_two_threads_never_wait_for_each_other(rig: Any, ok: Any) -> None:
    holding = Holding()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)
        trace.get_current_span().set_attribute("late", True)

    r = rig(app)
    r.tracers.add_span_processor(holding)
    await r.request()
    request, _ = r.spans
    assert holding.found == [request.context.span_id]


SERVED = """
    import asyncio
    from opentelemetry import trace
    import otelctx
    otelctx.configure("a", logs=False)
    async def app(scope, receive, send):
        with trace.get_tracer("app").start_as_current_span("work"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})
    async def nothing(*_): ...
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    asyncio.run(otelctx.wrap(app)(scope, nothing, nothing))
    print("over")
"""


def test_with_the_sdks_own_metrics_a_span_that_ends_after_the_answer_stops_nobody() -> None:
    """Older SDKs always count their spans, newer ones if they are told to."""
    settings = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
    settings |= {"OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": "true"}
    command = [sys.executable, "-c", textwrap.dedent(SERVED)]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("over\n", "")


FORKED = """
    import os, threading
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from otelctx.asgi.server_span import ServerSpan
    from otelctx.context.scope import Scope
    begun, go = threading.Event(), threading.Event()
    class Holding(SpanProcessor):
        def on_start(self, span, parent_context=None):
            if span.name == "held background":
                begun.set()
                go.wait()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Holding())
    tracer = provider.get_tracer("x")
    def ended(name):
        own = tracer.start_span(name)
        seen = ServerSpan(own)
        own.end()
        seen.ended(tracer, name, Scope())
        return seen
    thread = threading.Thread(target=ended("held").add_event, args=("late",))
    other = ended("other")
    thread.start()
    begun.wait()
    if (child := os.fork()) == 0:
        other.add_event("late")
        print(other.name, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    go.set()
    thread.join()
"""


def test_a_child_starts_linked_spans_though_a_thread_of_its_parent_was_starting_one() -> None:
    command = [sys.executable, "-c", textwrap.dedent(FORKED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("other background\n", "")
