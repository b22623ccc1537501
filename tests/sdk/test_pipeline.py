"""Each span and log record is delivered, waits, or has been counted as dropped; none is gone in silence."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Lock
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExportResult
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult

from otelctx import semconv
from otelctx.sdk.finding import find_pipelines
from otelctx.sdk.forking import own_connections
from otelctx.sdk.pipeline import Pipeline, Signal, failing

SIZE, BATCH, ITEMS = 16, 4, 100
Made = tuple[Callable[[], None], Callable[[], None], Pipeline]


class Exporter:
    """Answers once it may, and refuses each third batch."""

    def __init__(self, results: Any = SpanExportResult) -> None:
        self.began, self.may = Event(), Event()
        self.batches = 0
        self._results = results

    def export(self, batch: Sequence[object]) -> Any:
        self.began.set()
        self.may.wait()
        self.batches += 1
        if self.batches % 3:
            return self._results.SUCCESS
        failing("refused by the collector")
        return self._results.FAILURE

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Signal], dict[str, int]]:
    """What the metric of drops says, by reason."""
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: meters)

    def count(signal: Signal) -> dict[str, int]:
        data = reader.get_metrics_data()
        return {
            str((point.attributes or {})[semconv.TELEMETRY_DROP_REASON]): int(getattr(point, "value", 0))
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == semconv.TELEMETRY_DROPPED
            for point in metric.data.data_points
            if (point.attributes or {})[semconv.TELEMETRY_SIGNAL] == signal
        }

    return count


def _spans(exporter: Any) -> Made:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=SIZE, max_export_batch_size=BATCH))
    (pipeline,) = find_pipelines("traces", provider)
    tracer = provider.get_tracer("test")
    return lambda: tracer.start_span("s").end(), provider.shutdown, pipeline


def _logs(exporter: Any) -> Made:
    provider: Any = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(
        BatchLogRecordProcessor(exporter, max_queue_size=SIZE, max_export_batch_size=BATCH)
    )
    (pipeline,) = find_pipelines("logs", provider)
    logger = provider.get_logger("test")
    return lambda: logger.emit(body="s"), provider.shutdown, pipeline


@pytest.mark.parametrize(
    ("signal", "make", "results"), [("traces", _spans, SpanExportResult), ("logs", _logs, LogRecordExportResult)]
)
def test_what_a_full_queue_drops_is_counted(
    signal: Signal, make: Callable[[Any], Made], results: Any, counted: Callable[[Signal], dict[str, int]]
) -> None:
    """opentelemetry-python #3152."""
    exporter = Exporter(results)
    emit, end, pipeline = make(exporter)
    for _ in range(BATCH):
        emit()
    assert exporter.began.wait(60)
    for _ in range(ITEMS):
        emit()
    assert counted(signal) == {"queue_full": ITEMS - SIZE}, "already while the exporter still waits for an answer"
    exporter.may.set()
    end()
    pipeline.close()
    assert dict(pipeline.dropped) == counted(signal)
    assert pipeline.delivered + pipeline.dropped.total() == BATCH + ITEMS, "delivered or counted, each of them"
    assert (pipeline.delivered, pipeline.last_error) == (4 * BATCH, "refused by the collector")


def test_what_nobody_has_confirmed_at_the_end_is_counted_once(counted: Callable[[Signal], dict[str, int]]) -> None:
    exporter = Exporter()
    emit, end, pipeline = _spans(exporter)
    for _ in range(BATCH):
        emit()
    assert exporter.began.wait(60)
    emit()
    pipeline.close()
    pipeline.close()
    assert counted("traces") == {"shutdown": BATCH + 1}, "the batch under way, and what waits behind it"
    exporter.may.set()
    end()
    emit()
    assert counted("traces") == {"shutdown": BATCH + 2}, "and what comes after the end"


def test_nothing_is_lost_where_the_exporter_keeps_up(counted: Callable[[Signal], dict[str, int]]) -> None:
    exporter = Exporter()
    exporter.may.set()
    emit, end, pipeline = _spans(exporter)
    for _ in range(BATCH * 2):
        emit()
    end()
    pipeline.close()
    assert (pipeline.delivered, counted("traces")) == (BATCH * 2, {})


def test_an_exporter_that_raises_has_not_delivered(counted: Callable[[Signal], dict[str, int]]) -> None:
    class Raising(Exporter):
        def export(self, batch: Sequence[object]) -> Any:
            raise RuntimeError("no")

    emit, end, pipeline = _spans(Raising())
    emit()
    end()
    assert (pipeline.delivered, counted("traces")) == (0, {"export": 1})


def test_a_forked_child_has_lost_nothing_of_what_its_parent_holds() -> None:
    exporter = Exporter()
    emit, end, pipeline = _spans(exporter)
    emit()
    pipeline._batch._queue.clear()  # as the SDK does in a child
    own_connections(pipeline)
    emit()
    exporter.may.set()
    end()
    pipeline.close()
    assert (pipeline.delivered, pipeline.dropped.total()) == (1, 0)


def test_an_exporter_is_watched_once_however_often_it_is_found() -> None:
    exporter = Exporter()
    exporter.may.set()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    first, second = find_pipelines("traces", provider), find_pipelines("traces", provider)
    provider.get_tracer("test").start_span("s").end()
    provider.shutdown()
    assert first == second
    assert first[0].delivered == 1


def test_exporting_on_the_event_loop_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    """opentelemetry-python #2024: a Simple processor stops the loop, for as long as its exporter tries."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    provider = TracerProvider(shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint="http://127.0.0.1:1")
    exporter.export = lambda spans: SpanExportResult.SUCCESS  # what it sends is not the point
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    find_pipelines("traces", provider)
    tracer = provider.get_tracer("test")
    tracer.start_span("in a thread of its own").end()
    assert caplog.records == []

    async def serve() -> None:
        tracer.start_span("one").end()
        tracer.start_span("two").end()

    with caplog.at_level(logging.WARNING):
        asyncio.run(serve())
    provider.shutdown()
    assert [r.getMessage().partition(",")[0] for r in caplog.records] == [
        "traces are exported one by one on the event loop"
    ]


class Slotted(SpanExporter):
    """Nothing can be put on it."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = 0

    def export(self, spans: Sequence[object]) -> SpanExportResult:
        self.seen += len(spans)
        return SpanExportResult.SUCCESS

    def __setattr__(self, name: str, value: object) -> None:
        if name != "seen":
            raise AttributeError(name)
        super().__setattr__(name, value)


@pytest.mark.parametrize("processor", [BatchSpanProcessor, SimpleSpanProcessor])
def test_an_exporter_that_can_not_be_watched_exports_all_the_same(processor: Any) -> None:
    provider, exporter = TracerProvider(shutdown_on_exit=False), Slotted()
    provider.add_span_processor(processor(exporter))
    assert find_pipelines("traces", provider) == []
    provider.get_tracer("test").start_span("s").end()
    provider.shutdown()
    assert exporter.seen == 1


@pytest.mark.parametrize("name", ["_shutdown", "_export_lock", "_queue"])
def test_a_queue_with_other_names_in_it_is_left_alone(name: str) -> None:
    """Of a later version of the SDK: an error in what is wrapped would be raised where a span ends."""
    exporter = Exporter()
    exporter.may.set()
    inside: Any = SimpleNamespace(
        _exporter=exporter, _queue=deque(maxlen=1), _shutdown=False, _export_lock=Lock(), emit=list[Any]().append
    )
    emit = inside.emit
    delattr(inside, name)
    processor = SimpleNamespace(_batch_processor=inside, span_exporter=exporter)
    provider = SimpleNamespace(_active_span_processor=SimpleNamespace(_span_processors=(processor,)))
    (pipeline,) = find_pipelines("traces", provider)
    assert inside.emit is emit
    exporter.export([object()])
    assert pipeline.delivered == 1, "what leaves is counted"


def test_a_provider_of_another_kind_has_no_pipelines_and_breaks_nothing() -> None:
    for signal in ("traces", "metrics", "logs"):
        assert find_pipelines(signal, object()) == []
