"""Patches of other libraries for the time of one test, and what is exported meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otelctx.auto.applications import applications
from otelctx.auto.clients import clients
from otelctx.auto.patches import Patches


class Zero:
    """As the instrumentor makes them; ``options`` are those of the middleware."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.options: dict[str, Any] = {}
        self.patches = Patches()
        applications(self.patches, lambda: self.options)
        clients(self.patches)

    def spans(self, kind: str | None = None) -> list[Any]:
        return [s for s in self.exporter.get_finished_spans() if kind is None or s.kind.name == kind]

    def one(self, kind: str) -> Any:
        (span,) = self.spans(kind)
        return span


@pytest.fixture
def zero(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zero]:
    made = Zero()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", made.tracers)
    monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", made.meters)
    made.patches.start()
    yield made
    made.patches.stop()
