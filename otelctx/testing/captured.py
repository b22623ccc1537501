"""``capture()``: what the code under test exports, in memory.

OpenTelemetry lets a process set its providers once. So capture adds to the SDK's providers that are set, or sets some
the first time, and takes out what it added when its block ends; it never resets anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ExponentialHistogram,
    Histogram,
    InMemoryMetricReader,
    Metric,
    Sum,
)
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from otelctx.errors import ConfigError
from otelctx.testing.spans import Point, SeenEvent, SeenSpan, only

__all__ = ["Captured", "capture"]


class _Key(NamedTuple):
    scope: str
    metric: str
    attributes: tuple[tuple[str, Any], ...]


class _Total(NamedTuple):
    value: float
    number: int  # of values in a histogram
    grows: bool  # a counter or histogram: what is of interest is by how much


_NOTHING: Final = _Total(0, 0, True)


class Captured:
    """Spans that ended, and metrics, while the block ran. Readable inside the block and after it."""

    def __init__(self, reader: InMemoryMetricReader | None) -> None:
        self._spans: list[SeenSpan] = []
        self._reader = reader
        self._before = _totals(reader)
        self._at_end: dict[_Key, _Total] | None = None

    @property
    def spans(self) -> list[SeenSpan]:
        """All spans that have ended, in the order of their ends."""
        return list(self._spans)

    def span(self, name: str) -> SeenSpan:
        """The one span ``name``. Raises ``LookupError`` that lists what was seen."""
        spans = self.spans
        return only([s for s in spans if s.name == name], f"span {name!r}", [s.name for s in spans])

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

    def add(self, span: SeenSpan) -> None:
        self._spans.append(span)

    def close(self) -> None:
        """Nothing is added any more."""
        self._at_end = _totals(self._reader)

    def _changed(self) -> Iterator[tuple[_Key, _Total]]:
        now = self._at_end if self._at_end is not None else _totals(self._reader)
        for key, total in now.items():
            if not total.grows:
                yield key, total
                continue
            before = self._before.get(key, _NOTHING)
            if (total.value, total.number) != (before.value, before.number):
                yield key, _Total(total.value - before.value, total.number - before.number, True)

    @staticmethod
    def _words(key: _Key) -> str:
        attributes = ", ".join(f"{name}={value}" for name, value in key.attributes)
        return f"{key.metric}{{{attributes}}}" if attributes else key.metric


class _Processor(SpanProcessor):
    """Gives ended spans to the captures that are open."""

    def __init__(self) -> None:
        self.open: tuple[Captured, ...] = ()  # replaced, never changed: spans end on any thread

    def on_end(self, span: ReadableSpan) -> None:
        if captures := self.open:
            seen = _seen(span)
            for capture in captures:
                capture.add(seen)


_processors: WeakKeyDictionary[TracerProvider, _Processor] = WeakKeyDictionary()
_readers: WeakKeyDictionary[MeterProvider, InMemoryMetricReader] = WeakKeyDictionary()


@contextmanager
def capture() -> Iterator[Captured]:
    """Everything that ends inside the block is seen; nested blocks see their own part, outer ones all of it.

    Raises :class:`~otelctx.errors.ConfigError` if a tracer provider other than the SDK's is set.
    """
    processor = _span_processor()
    with _metric_reader() as reader:
        seen = Captured(reader)
        processor.open = (*processor.open, seen)
        try:
            yield seen
        finally:
            processor.open = tuple(other for other in processor.open if other is not seen)
            seen.close()


def _span_processor() -> _Processor:
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        provider = TracerProvider(shutdown_on_exit=False)
        trace.set_tracer_provider(provider)
    if not isinstance(provider, TracerProvider):
        raise ConfigError(f"capture() needs the SDK's TracerProvider; {type(provider).__qualname__} is set")
    processor = _processors.get(provider)
    if processor is None:
        # A provider can't be rid of a processor again; one without open captures does nothing.
        processor = _processors[provider] = _Processor()
        provider.add_span_processor(processor)
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


def _totals(reader: InMemoryMetricReader | None) -> dict[_Key, _Total]:
    data = reader.get_metrics_data() if reader is not None else None
    totals: dict[_Key, _Total] = {}
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for attributes, total in _points(metric):
                    totals[_Key(scope.scope.name, metric.name, attributes)] = total
    return totals


def _points(metric: Metric) -> Iterator[tuple[tuple[tuple[str, Any], ...], _Total]]:
    data = metric.data
    if isinstance(data, Histogram | ExponentialHistogram):
        for point in data.data_points:
            yield _attributes(point), _Total(point.sum, point.count, True)
    else:
        grows = isinstance(data, Sum) and data.is_monotonic
        for number in data.data_points:
            yield _attributes(number), _Total(number.value, 0, grows)


def _attributes(point: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((point.attributes or {}).items()))


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
