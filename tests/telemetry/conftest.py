"""Providers with in-memory exporters, for one test each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import _logs, metrics, trace
from opentelemetry.metrics import MeterProvider as ApiMeterProvider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

from otelctx.telemetry import events


@pytest.fixture
def providers(make_exports: Callable[[], Any]) -> Callable[[], Any]:
    """Makes them; also ``loggers``, whose records are in ``logs``."""

    def make() -> Any:
        made = make_exports()
        made.logs = InMemoryLogRecordExporter()
        made.loggers = LoggerProvider(shutdown_on_exit=False)
        made.loggers.add_log_record_processor(SimpleLogRecordProcessor(made.logs))
        return made

    return make


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, providers: Callable[[], Any]) -> Iterator[Any]:
    """What is exported, with the global providers."""
    found = providers()
    meters: ApiMeterProvider = found.meters
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: meters)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: found.tracers)
    monkeypatch.setattr(_logs, "get_logger", found.loggers.get_logger)
    yield found
    events.set_mode("span")
