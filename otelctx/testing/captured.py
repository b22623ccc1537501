"""``capture()``: what the code under test exports, in memory.

OpenTelemetry lets a process set its providers once. So capture adds to the SDK's providers that are set, or sets some
the first time, and takes out what it added when its block ends; it never resets anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from otelctx.errors import ConfigError
from otelctx.testing.spans import Point, SeenEvent, SeenSpan, only

__all__ = ["Captured", "capture"]


class Captured:
    """Spans that ended, and metrics as they stand, since the block began."""

    def __init__(self, reader: InMemoryMetricReader | None) -> None:
        self._spans: list[SeenSpan] = []
        self._reader = reader
        self._before = self._totals()

    @property
    def spans(self) -> list[SeenSpan]:
        """All spans that have ended, in the order of their ends."""
        return list(self._spans)

    def span(self, name: str) -> SeenSpan:
        """The one span ``name``. Raises ``LookupError`` that lists what was seen."""
        return only([s for s in self._spans if s.name == name], f"span {name!r}", [s.name for s in self._spans])

    def metric(self, name: str, **attributes: Any) -> Point:
        """The one point of ``name`` with at least these attributes (dots as ``__``), counted since the block began.

        Raises ``LookupError`` that lists what was seen.
        """
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        found = [p for p in self.metrics(name) if wanted.items() <= dict(p.attributes).items()]
        names = sorted({key[0] for key in self._totals()})
        return only(found, f"point of {name!r} with {wanted}", names)

    def metrics(self, name: str) -> list[Point]:
        """All points of ``name`` that have changed since the block began."""
        points: list[Point] = []
        for (metric, attributes), (value, count) in self._totals().items():
            old_value, old_count = self._before.get((metric, attributes), (0.0, 0))
            if metric == name and (count != old_count or value != old_value):
                points.append(Point(dict(attributes), value - old_value, count - old_count))
        return points

    def add(self, span: SeenSpan) -> None:
        self._spans.append(span)

    def _totals(self) -> dict[tuple[str, tuple[tuple[str, Any], ...]], tuple[float, int]]:
        data = self._reader.get_metrics_data() if self._reader is not None else None
        totals: dict[tuple[str, tuple[tuple[str, Any], ...]], tuple[float, int]] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        key = (metric.name, tuple(sorted((point.attributes or {}).items())))
                        value = getattr(point, "sum", None)
                        count = getattr(point, "count", None)
                        totals[key] = (value if value is not None else getattr(point, "value", 0), count or 1)
        return totals


class _Processor(SpanProcessor):
    """Sends ended spans to the captures that are open, innermost first and only."""

    def __init__(self) -> None:
        self.open: list[Captured] = []

    def on_end(self, span: ReadableSpan) -> None:
        if self.open:
            self.open[-1].add(_seen(span))


_processors: dict[int, _Processor] = {}
_reader: InMemoryMetricReader | None = None


@contextmanager
def capture() -> Iterator[Captured]:
    """Everything that ends inside the block is seen; nested blocks see their own part only.

    Raises :class:`~otelctx.errors.ConfigError` if a tracer provider other than the SDK's is set. Metrics are seen only
    if no meter provider was set before the first capture of the process.
    """
    processor = _span_processor()
    seen = Captured(_metric_reader())
    processor.open.append(seen)
    try:
        yield seen
    finally:
        processor.open.remove(seen)


def _span_processor() -> _Processor:
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        provider = TracerProvider(shutdown_on_exit=False)
        trace.set_tracer_provider(provider)
    if not isinstance(provider, TracerProvider):
        raise ConfigError(f"capture() needs the SDK's TracerProvider; {type(provider).__qualname__} is set")
    processor = _processors.get(id(provider))
    if processor is None:
        processor = _processors[id(provider)] = _Processor()
        provider.add_span_processor(processor)
    return processor


def _metric_reader() -> InMemoryMetricReader | None:
    global _reader
    if _reader is None and not isinstance(metrics.get_meter_provider(), MeterProvider):
        _reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([_reader], shutdown_on_exit=False))
    return _reader


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
