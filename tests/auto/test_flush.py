from __future__ import annotations

import threading
from typing import Any

import pytest
from opentelemetry import _logs, metrics, trace

from otelctx.auto import flush as module
from otelctx.auto.flush import flush, flushing


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

    for kind in ("startup.complete", "shutdown.complete"):
        await flushing(send)({"type": f"lifespan.{kind}"})
    assert events == ["lifespan.startup.complete", "flushed", "lifespan.shutdown.complete"]


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
