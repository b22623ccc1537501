"""``capture()``: what the code under test exports, in memory.

OpenTelemetry lets a process set its providers once. So capture adds to the SDK's providers that are set, or sets some
the first time, and takes out what it added when its block ends; it never resets anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from otelctx.errors import ConfigError
from otelctx.telemetry.feed import FEED, Item
from otelctx.testing.points import NOTHING, Key, Total, totals
from otelctx.testing.spans import Point, SeenEvent, SeenLog, SeenSpan, only

__all__ = ["Captured", "capture"]


class Captured:
    """What ended or was emitted while the block ran. Readable inside the block and after it."""

    def __init__(self, reader: InMemoryMetricReader | None) -> None:
        self._spans: list[SeenSpan] = []
        self._logs: list[SeenLog] = []
        self._newest = next(iter(FEED.recent(1)), None)
        self._events: list[Item] | None = None
        self._reader = reader
        self._before = totals(reader)
        self._at_end: dict[Key, Total] | None = None

    @property
    def spans(self) -> list[SeenSpan]:
        """All spans that have ended, in the order of their ends."""
        return list(self._spans)

    def span(self, name: str) -> SeenSpan:
        """The one span ``name``. Raises ``LookupError`` that lists what was seen."""
        spans = self.spans
        return only([s for s in spans if s.name == name], f"span {name!r}", [s.name for s in spans])

    @property
    def logs(self) -> list[SeenLog]:
        """All log records that went to OpenTelemetry's logger provider; those of :mod:`logging` only if a handler of
        OpenTelemetry's is installed, as ``otelctx.configure()`` does."""
        return list(self._logs)

    def log(self, name: str) -> SeenLog:
        """The one log record whose event name or body is ``name``. Raises ``LookupError`` that lists what was seen."""
        found = [log for log in self.logs if name in (log.name, log.body)]
        return only(found, f"log record {name!r}", [log.name or str(log.body) for log in self.logs])

    @property
    def events(self) -> list[Item]:
        """Our own events, as the feed has them, whether they go out on spans or as log records; 256 at most."""
        return self._fresh() if self._events is None else list(self._events)

    def event(self, name: str) -> Item:
        """The one event ``name``. Raises ``LookupError`` that lists what was seen."""
        events = self.events
        return only([e for e in events if e.name == name], f"event {name!r}", [e.name for e in events])

    def metric(self, name: str, **attributes: Any) -> Point:
        """The one point of ``name`` with at least these attributes (dots as ``__``); see :meth:`metrics`.

        Raises ``LookupError`` that lists what was seen.
        """
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        found = [p for p in self.metrics(name) if wanted.items() <= dict(p.attributes).items()]
        what = f"point of {name!r}" + (f" with {wanted}" if wanted else "")
        return only(found, what, [self._words(key) for key, _ in self._changed()])

    def metrics(self, name: str) -> list[Point]:
        """All points of ``name``: counters and histograms by what they grew since the block began, and only if they
        did; gauges and up-down counters as they stand.

        Raises ``LookupError`` if a meter provider is set that can't be watched.
        """
        if self._reader is None:
            raise LookupError(
                f"metrics are not seen, because {type(metrics.get_meter_provider()).__qualname__} was set "
                "before the first capture() of this process and takes no further reader"
            )
        return [
            Point(dict(key.attributes), total.value, total.number or 1)
            for key, total in self._changed()
            if key.metric == name
        ]

    def add(self, seen: SeenSpan | SeenLog) -> None:
        if isinstance(seen, SeenSpan):
            self._spans.append(seen)
        else:
            self._logs.append(seen)

    def close(self) -> None:
        """Nothing is added any more."""
        self._at_end = totals(self._reader)
        self._events = self._fresh()

    def _fresh(self) -> list[Item]:
        items = FEED.recent()
        known = next((index for index, item in enumerate(items) if item is self._newest), -1)
        return items[known + 1 :]

    def _changed(self) -> Iterator[tuple[Key, Total]]:
        now = self._at_end if self._at_end is not None else totals(self._reader)
        for key, total in now.items():
            if not total.grows:
                yield key, total
                continue
            before = self._before.get(key, NOTHING)
            if (total.value, total.number) != (before.value, before.number):
                yield key, Total(total.value - before.value, total.number - before.number, True)

    @staticmethod
    def _words(key: Key) -> str:
        attributes = ", ".join(f"{name}={value}" for name, value in key.attributes)
        return f"{key.metric}{{{attributes}}}" if attributes else key.metric


class _Open:
    """Gives what ends to the captures that are open."""

    def __init__(self) -> None:
        self.captures: tuple[Captured, ...] = ()  # replaced, never changed: spans end on any thread

    def add(self, seen: SeenSpan | SeenLog) -> None:
        for capture in self.captures:
            capture.add(seen)

    @contextmanager
    def showing(self, seen: Captured) -> Iterator[None]:
        self.captures = (*self.captures, seen)
        try:
            yield
        finally:
            self.captures = tuple(other for other in self.captures if other is not seen)


class _Spans(_Open, SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        if self.captures:
            self.add(_seen(span))


class _Logs(_Open, LogRecordProcessor):
    def on_emit(self, log_record: Any) -> None:
        if self.captures:
            self.add(_seen_log(log_record.log_record))

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


_spans: WeakKeyDictionary[TracerProvider, _Spans] = WeakKeyDictionary()
_logs_of: WeakKeyDictionary[LoggerProvider, _Logs] = WeakKeyDictionary()
_readers: WeakKeyDictionary[MeterProvider, InMemoryMetricReader] = WeakKeyDictionary()


@contextmanager
def capture() -> Iterator[Captured]:
    """Everything that ends inside the block is seen; nested blocks see their own part, outer ones all of it.

    ``with`` is right in coroutines, too; what other tasks and threads do meanwhile is seen as well. Raises
    :class:`~otelctx.errors.ConfigError` if a tracer provider other than the SDK's is set. Of another's logger provider
    no records are seen.
    """
    spans, logs = _span_processor(), _log_processor()
    with _metric_reader() as reader:
        seen = Captured(reader)
        try:
            with spans.showing(seen), logs.showing(seen):
                yield seen
        finally:
            seen.close()


def _span_processor() -> _Spans:
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        provider = TracerProvider(shutdown_on_exit=False)
        trace.set_tracer_provider(provider)
    if not isinstance(provider, TracerProvider):
        raise ConfigError(f"capture() needs the SDK's TracerProvider; {type(provider).__qualname__} is set")
    processor = _spans.get(provider)
    if processor is None:
        # A provider can't be rid of a processor again; one without open captures does nothing.
        processor = _spans[provider] = _Spans()
        provider.add_span_processor(processor)
    return processor


def _log_processor() -> _Logs:
    provider: Any = _logs.get_logger_provider()
    if type(provider).__name__ == "ProxyLoggerProvider":
        _logs.set_logger_provider(LoggerProvider(shutdown_on_exit=False))
        provider = _logs.get_logger_provider()
    if not isinstance(provider, LoggerProvider):
        return _Logs()
    processor = _logs_of.get(provider)
    if processor is None:
        processor = _logs_of[provider] = _Logs()
        provider.add_log_record_processor(processor)
    return processor


@contextmanager
def _metric_reader() -> Iterator[InMemoryMetricReader | None]:
    provider = metrics.get_meter_provider()
    if not isinstance(provider, MeterProvider):
        # With a reader from the start, since SDKs before 1.43 take none later.
        reader = InMemoryMetricReader()
        ours = MeterProvider([reader], shutdown_on_exit=False)
        metrics.set_meter_provider(ours)
        if metrics.get_meter_provider() is ours:
            _readers[ours] = reader
        yield _readers.get(ours)
    elif provider in _readers:
        yield _readers[provider]
    elif hasattr(provider, "add_metric_reader"):
        reader = InMemoryMetricReader()
        provider.add_metric_reader(reader)
        try:
            yield reader
        finally:
            provider.remove_metric_reader(reader)
    else:
        yield None


def _seen(span: ReadableSpan) -> SeenSpan:
    context = span.get_span_context()
    return SeenSpan(
        trace_id=f"{context.trace_id:032x}" if context else "",
        span_id=f"{context.span_id:016x}" if context else "",
        parent_id=f"{span.parent.span_id:016x}" if span.parent else "",
        name=span.name,
        kind=span.kind.name,
        service=str(span.resource.attributes.get("service.name", "")),
        start=span.start_time or 0,
        end=span.end_time or 0,
        status=span.status.status_code.name,
        attributes=dict(span.attributes or {}),
        events=tuple(SeenEvent(e.name, e.timestamp, dict(e.attributes or {})) for e in span.events),
        links=tuple((f"{x.context.trace_id:032x}", f"{x.context.span_id:016x}") for x in span.links),
    )


def _seen_log(record: Any) -> SeenLog:
    return SeenLog(
        name=record.event_name or "",
        body=record.body,
        time=record.timestamp or record.observed_timestamp or 0,
        severity=record.severity_number.name if record.severity_number else "",
        attributes=dict(record.attributes or {}),
        trace_id=f"{record.trace_id:032x}" if record.trace_id else "",
        span_id=f"{record.span_id:016x}" if record.span_id else "",
    )
