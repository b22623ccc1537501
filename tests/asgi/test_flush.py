from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from opentelemetry import _logs, metrics, trace

from otelctx.asgi import flush as module
from otelctx.asgi.flush import flush, flushing
from otelctx.asgi.middleware import wrap


class Provider:
    def __init__(self, send: Any) -> None:
        self.force_flush = send


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(*sends: Any) -> None:
        monkeypatch.setattr(module, "_PROVIDERS", tuple((lambda s=send: Provider(s)) for send in sends))

    return use


async def test_all_is_sent_before_a_lifespan_says_its_last_word(providers: Any) -> None:
    events: list[str] = []
    providers(lambda: events.append("flushed"))

    async def send(message: Any) -> None:
        events.append(message["type"])

    scope: Any = {"type": "lifespan"}
    outer = flushing(scope, send)
    assert flushing(scope, outer) is outer, "a middleware within another one"
    for kind in ("startup.complete", "shutdown.complete"):
        await outer({"type": f"lifespan.{kind}"})
    assert events == ["lifespan.startup.complete", "flushed", "lifespan.shutdown.complete"]


async def test_the_middleware_does_so_whatever_the_application_is(providers: Any) -> None:
    events: list[str] = []
    providers(lambda: events.append("flushed"))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.shutdown.complete"})

    async def send(message: Any) -> None:
        events.append(message["type"])

    async def receive() -> Any:
        raise AssertionError

    await wrap(wrap(application))({"type": "lifespan"}, receive, send)
    assert events == ["flushed", "lifespan.shutdown.complete"]


async def test_in_a_thread_of_the_process_where_it_goes_on_nothing_waits(providers: Any) -> None:
    events: list[str] = []
    providers(lambda: events.append("flushed"))

    async def send(message: Any) -> None:
        events.append(message["type"])

    def run() -> None:
        asyncio.run(flushing({"type": "lifespan"}, send)({"type": "lifespan.shutdown.complete"}))

    await asyncio.to_thread(run)
    assert events == ["lifespan.shutdown.complete"]


def test_a_failure_and_a_collector_that_does_not_answer_hold_nobody_up(providers: Any) -> None:
    gate, sent = threading.Event(), threading.Event()

    def fails() -> None:
        raise TimeoutError

    providers(gate.wait, fails, sent.set)
    flush(timeout=0.2)
    assert sent.is_set()
    gate.set()


def test_the_apis_own_providers_have_nothing_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    own = (trace.NoOpTracerProvider, metrics.NoOpMeterProvider, _logs.NoOpLoggerProvider)
    monkeypatch.setattr(module, "_PROVIDERS", own)
    threads = threading.active_count()
    flush()
    assert threading.active_count() == threads
