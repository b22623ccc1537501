"""What becomes of spans and log records: counted between the application and the exporter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final, Literal

from opentelemetry.sdk._logs import LogRecordProcessor, ReadableLogRecord, ReadWriteLogRecord
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from otelctx.semconv import TELEMETRY_SIGNAL
from otelctx.telemetry.instruments import instruments

__all__ = ["Watch"]

Signal = Literal["traces", "logs"]


class Watch:
    """Counts, for each exporter, what was handed over and what was delivered; the difference is lost at the end.

    ``settled`` is called after each export, with whether it was delivered.
    """

    def __init__(self, settled: Callable[[bool], None]) -> None:
        self._settled = settled
        self._lock = Lock()
        self.handed: Final[dict[Signal, int]] = {"traces": 0, "logs": 0}
        self.delivered: Final[dict[Signal, int]] = {"traces": 0, "logs": 0}
        self.exporters: Final[dict[Signal, int]] = {"traces": 0, "logs": 0}

    def lost(self) -> dict[Signal, int]:
        """What was handed over and not delivered: what still waits included, so ask when all is over."""
        return {signal: max(0, self.handed[signal] - self.delivered[signal]) for signal in self.handed}

    def clear(self) -> None:
        """Forget the counts: a forked child has lost nothing of what its parent holds."""
        self._lock = Lock()
        for counts in (self.handed, self.delivered):
            for signal in counts:
                counts[signal] = 0

    def hand(self, signal: Signal) -> None:
        with self._lock:
            self.handed[signal] += 1

    def exported(self, signal: Signal, count: int, delivered: bool) -> None:
        if delivered:
            with self._lock:
                self.delivered[signal] += count
        else:
            instruments().telemetry_dropped.add(count, {TELEMETRY_SIGNAL: signal})
        self._settled(delivered)

    # The two hooks of the SDK's configurator: exporter → processor.

    def span_processor(self, span_exporter: SpanExporter, *args: Any, **kwargs: Any) -> SpanProcessor:
        self.exporters["traces"] += 1
        return _Spans(self, _SpanExporter(self, span_exporter))

    def log_processor(self, exporter: LogRecordExporter, *args: Any, **kwargs: Any) -> LogRecordProcessor:
        self.exporters["logs"] += 1
        return _Logs(self, _LogExporter(self, exporter))


class _SpanExporter(SpanExporter):
    def __init__(self, watch: Watch, inner: SpanExporter) -> None:
        self._watch = watch
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            self._watch.exported("traces", len(spans), result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _LogExporter(LogRecordExporter):
    def __init__(self, watch: Watch, inner: LogRecordExporter) -> None:
        self._watch = watch
        self._inner: Any = inner  # its shutdown() is untyped

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        result: LogRecordExportResult = LogRecordExportResult.FAILURE
        try:
            result = self._inner.export(batch)
        finally:
            self._watch.exported("logs", len(batch), result is LogRecordExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return bool(self._inner.force_flush(timeout_millis))


class _Spans(BatchSpanProcessor):
    def __init__(self, watch: Watch, exporter: SpanExporter) -> None:
        super().__init__(exporter)
        self._watch = watch

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._watch.hand("traces")
        super().on_end(span)


class _Logs(BatchLogRecordProcessor):
    def __init__(self, watch: Watch, exporter: LogRecordExporter) -> None:
        super().__init__(exporter)
        self._watch = watch

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        self._watch.hand("logs")
        super().on_emit(log_record)
