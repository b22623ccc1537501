"""What Prometheus calls an instrument, by the rules of its OTLP translator with suffixes.

The collector's remote-write exporter and Prometheus' own OTLP endpoint follow the same rules by default.
"""

from __future__ import annotations

import re
from typing import Final

from otelctx.semconv.model import Metric

__all__ = ["label", "series"]

_UNITS: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "By": "bytes", "%": "percent"}
_HISTOGRAM: Final = ("_bucket", "_sum", "_count")


def label(key: str) -> str:
    """The label that attribute ``key`` becomes."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)


def series(metric: Metric) -> tuple[str, ...]:
    """The names of the series that ``metric`` becomes: three of a histogram, one of anything else."""
    words = [word for word in re.split(r"[^a-zA-Z0-9]+", metric.name) if word]
    suffixes = [_unit(metric)]
    if metric.kind == "counter":
        words = [word for word in words if word != "total"]
        suffixes.append("total")
    name = "_".join([*words, *(s for s in suffixes if s and s not in words)])
    return tuple(name + end for end in _HISTOGRAM) if metric.kind == "histogram" else (name,)


def _unit(metric: Metric) -> str:
    """An annotation in braces is no unit. ``1`` is a ratio, but only of a gauge: people count things in it."""
    if metric.unit == "1":
        return "ratio" if metric.kind == "gauge" else ""
    return "" if metric.unit.startswith("{") else _UNITS[metric.unit]
