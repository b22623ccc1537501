"""What an application is not told of elsewhere: that spans were lost, and that its event loop waits for a collector."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from otelctx.sdk.pipeline import Pipeline


class Held(SpanExporter):
    """Exports nothing before it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.gate.wait(60)
        return SpanExportResult.SUCCESS


def test_spans_that_a_full_queue_drops_are_counted() -> None:
    exporter = Held()
    batch = BatchSpanProcessor(exporter, max_queue_size=4, max_export_batch_size=4, schedule_delay_millis=3_600_000)
    pipeline = Pipeline("traces", exporter, batch._batch_processor)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(batch)
    tracer = provider.get_tracer("test")
    for _ in range(4):
        tracer.start_span("taken").end()
    assert exporter.entered.wait(60)
    for _ in range(10):
        tracer.start_span("more than there is room for").end()
    assert pipeline.dropped == {"queue_full": 6}
    exporter.gate.set()
    provider.shutdown()
    assert (pipeline.delivered, sum(pipeline.dropped.values())) == (8, 6)


class _Simple:
    """An OTLP exporter behind a processor that does not queue."""

    __module__ = "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"

    def export(self, batch: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


async def test_an_export_on_the_event_loop_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """It stands still meanwhile, and for ten seconds when the collector is gone."""
    pipeline = Pipeline("traces", _Simple(), direct=True)
    for _ in range(3):
        pipeline.exporter.export([object()])
    (record,) = caplog.records
    assert "use the SDK's Batch processor" in record.message


def test_nor_is_there_a_word_where_no_loop_waits(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline("traces", _Simple(), direct=True)
    pipeline.exporter.export([object()])
    assert caplog.records == []
    assert pipeline.delivered == 1
