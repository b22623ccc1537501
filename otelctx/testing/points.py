"""What an in-memory reader of the SDK holds, as totals that can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.metrics.export import (
    ExponentialHistogram,
    Histogram,
    InMemoryMetricReader,
    Metric,
    Sum,
)

__all__ = ["NOTHING", "Key", "Total", "totals"]


class Key(NamedTuple):
    scope: str
    metric: str
    attributes: tuple[tuple[str, Any], ...]


class Total(NamedTuple):
    value: float
    number: int  # of values in a histogram
    grows: bool  # a counter or histogram: what is of interest is by how much


NOTHING: Final = Total(0, 0, True)


def totals(reader: InMemoryMetricReader | None) -> dict[Key, Total]:
    data = reader.get_metrics_data() if reader is not None else None
    totals: dict[Key, Total] = {}
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for attributes, total in _points(metric):
                    totals[Key(scope.scope.name, metric.name, attributes)] = total
    return totals


def _points(metric: Metric) -> Iterator[tuple[tuple[tuple[str, Any], ...], Total]]:
    data = metric.data
    if isinstance(data, Histogram | ExponentialHistogram):
        for point in data.data_points:
            yield _attributes(point), Total(point.sum, point.count, True)
    else:
        grows = isinstance(data, Sum) and data.is_monotonic
        for number in data.data_points:
            yield _attributes(number), Total(number.value, 0, grows)


def _attributes(point: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((point.attributes or {}).items()))
