"""Spans and metrics against the conventions' own tables, which were written down from their text and not from ours.

Each check returns complaints as text, and none if all is well. ``*`` at the end of a key stands for any name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics.export import Gauge, Histogram, Sum
from opentelemetry.trace import StatusCode

from otelctx import semconv
from otelctx.telemetry.instruments import NAME

LEVELS = ("required", "conditional", "recommended", "opt_in")
# Namespaces that the conventions have a say in; ours and whatever an application adds are not theirs.
NAMESPACES = ("http", "url", "server", "client", "network", "user_agent", "error", "rpc", "gen_ai", "net")
DISTINCT = {"http.request.method": "http", "rpc.system.name": "rpc", "gen_ai.operation.name": "gen_ai"}


def _load() -> tuple[dict[str, Any], dict[str, Any]]:
    spans: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    for path in sorted(Path(__file__).parent.glob("*.json")):
        table = json.loads(path.read_text())
        spans |= table["spans"]
        metrics |= table["metrics"]
    return spans, metrics


SPANS, METRICS = _load()


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, tuple | list):
        return "string[]" if all(isinstance(item, str) for item in value) else "other[]"
    return {str: "string", int: "int", float: "double"}.get(type(value), type(value).__name__)


def _expected(row: Mapping[str, Any], key: str) -> str | None:
    for level in LEVELS:
        if key in row[level]:
            return str(row[level][key])
        for pattern, kind in row[level].items():
            if pattern.endswith("*") and key.startswith(pattern[:-1]):
                return str(kind)
    return None


def _attributes(row: Mapping[str, Any], found: Mapping[str, Any], where: str) -> Iterator[str]:
    for key in row["required"]:
        if key not in found:
            yield f"{where}: {key} is required"
    for key, value in found.items():
        expected = _expected(row, key)
        if expected is not None and _type(value) != expected:
            yield f"{where}: {key} is {value!r}, not a {expected}"
        if expected is None and key.split(".")[0] in NAMESPACES:
            yield f"{where}: {key} has no place there"
    if "server.port" in found and "server.address" not in found:
        yield f"{where}: a port without its address"
    address = str(found.get("server.address", ""))
    if re.fullmatch(r"[^:]+:\d+", address):
        yield f"{where}: server.address has the port in it: {address!r}"


def type_of(span: Any) -> str | None:
    """Which of the conventions' span types ``span`` says it is."""
    for key, area in DISTINCT.items():
        if key in span.attributes:
            return "gen_ai.client.inference" if area == "gen_ai" else f"{area}.{span.kind.name.lower()}"
    return None


def spans(found: Iterable[Any]) -> list[str]:
    """Complaints about SDK spans of ours that have ended."""
    return [c for span in found if span.instrumentation_scope.name == NAME for c in _span(span)]


def _span(span: Any) -> Iterator[str]:
    if span.dropped_attributes:
        return  # an SDK over its limit has let go of the oldest: what is left says nothing about what was set
    # What else an application has set on it is its own affair.
    attributes = {k: v for k, v in span.attributes.items() if k.split(".")[0] in (*NAMESPACES, "otelctx", "session")}
    where = f"span {span.name!r}"
    if len(attributes) >= 100:
        yield f"{where}: {len(attributes)} attributes"
    name = type_of(span)
    if name is None or name not in SPANS:
        yield from _own(span, attributes, where)
        return
    row = SPANS[name]
    for event in span.events:
        yield from event_of(event.name, dict(event.attributes), where)
    yield from _attributes(row, attributes, where)
    if span.kind.name not in row["kinds"]:
        yield f"{where}: kind {span.kind.name}"
    if span.name != (wanted := _name(row, attributes)):
        yield f"{where}: should be named {wanted!r}"
    yield from _ours(name.replace("gen_ai.client.inference", semconv.SPAN_INFERENCE), attributes, where)
    yield from _errors(name, span, attributes, where)
    for key in row.get("only_true", ()):
        if attributes.get(key, True) is not True:
            yield f"{where}: {key} is never false"


def event_of(name: str, attributes: Mapping[str, Any], where: str) -> Iterator[str]:
    """Complaints about one event of ours, on a span or as a record."""
    row = semconv.EVENTS.get(name)
    if row is None:
        if name.startswith("otelctx."):
            yield f"{where}: the table has no event {name}"
        return
    for key, value in attributes.items():
        if key not in row.attributes:
            yield f"{where}: the table has no {key} on {name}"
        elif _type(value) != semconv.ATTRIBUTES[key].type:
            yield f"{where}: {key} of {name} is {value!r}"
        elif (values := semconv.ATTRIBUTES[key].values) and value not in values:
            yield f"{where}: {key} of {name} is {value!r}, none of the table's {values}"
    yield from (
        f"{where}: {name} needs {k}" for k, v in row.attributes.items() if v == "required" and k not in attributes
    )
    if attributes.get(semconv.REASON) not in (None, *row.reasons):
        yield f"{where}: the reason of {name} is {attributes[semconv.REASON]!r}, none of the table's {row.reasons}"


def _name(row: Mapping[str, Any], attributes: Mapping[str, Any]) -> str | None:
    """The first of the row's patterns whose attributes are all there."""
    for pattern in row["name"]:
        keys = re.findall(r"\{([^}]+)\}", pattern)
        if all(key in attributes for key in keys):
            for key in keys:
                other = row.get("name_other", {}).get(key, {})
                pattern = pattern.replace(f"{{{key}}}", other.get(attributes[key], str(attributes[key])))
            return str(pattern)
    return None


def _errors(name: str, span: Any, attributes: Mapping[str, Any], where: str) -> Iterator[str]:
    failed = span.status.status_code is StatusCode.ERROR
    if failed != ("error.type" in attributes):
        yield f"{where}: status {span.status.status_code.name} with error.type {attributes.get('error.type')!r}"
    if span.status.status_code is StatusCode.OK:
        yield f"{where}: OK is the application's to say"
    status = attributes.get("http.response.status_code")
    if not isinstance(status, int):
        status = None
    if status is not None and "error.type" in attributes and attributes["error.type"] == str(status):
        lowest = 500 if name == "http.server" else 400
        if status < lowest:
            yield f"{where}: {status} is no error here"
    asked_again = attributes.get(semconv.RESYNC)
    if status is not None and status >= (500 if name == "http.server" else 400) and not failed and not asked_again:
        yield f"{where}: {status} is an error"
    other = attributes.get("http.request.method") == "_OTHER"
    if other != ("http.request.method_original" in attributes):
        yield f"{where}: method_original belongs to _OTHER alone"


def _own(span: Any, attributes: Mapping[str, Any], where: str) -> Iterator[str]:
    """A span that no conventions know must be one of our table's, and has what the table says."""
    named = {"queue": semconv.SPAN_QUEUE, "prefill": semconv.SPAN_PREFILL, "decode": semconv.SPAN_DECODE}
    first = span.name.split()[0]
    kind = named.get(span.name) or ("websocket" if first == "websocket" else "background")
    yield from _ours(kind if "." in kind else f"otelctx.{kind}", attributes, where)
    if span.kind.name != "INTERNAL":
        yield f"{where}: kind {span.kind.name}"


def _ours(type_name: str, attributes: Mapping[str, Any], where: str) -> Iterator[str]:
    known = semconv.SPANS[type_name].attributes
    templates = tuple(f"{key}." for key in known if semconv.ATTRIBUTES[key].template)
    for key, value in attributes.items():
        if key not in known and not key.startswith(templates):
            yield f"{where}: the table has no {key} on {type_name}"
        elif key in known:
            row = semconv.ATTRIBUTES[key]
            if _type(value) != row.type:
                yield f"{where}: {key} is {value!r}, which the table has as {row.type}"
            values = value if isinstance(value, tuple) else (value,)
            if row.values and not set(values) <= set(row.values):
                yield f"{where}: {key} is {value!r}, none of the table's {row.values}"
    yield from (
        f"{where}: {k} is required" for k, level in known.items() if level == "required" and k not in attributes
    )


def metrics(data: Any) -> list[str]:
    """Complaints about what a metric reader has."""
    found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
    # Old SDKs report on themselves unasked.
    ours = (metric for metric in found if not metric.name.startswith("otel.sdk."))
    return [complaint for metric in ours for complaint in _metric(metric)]


def _metric(metric: Any) -> Iterator[str]:
    where = f"metric {metric.name}"
    if metric.name not in semconv.METRICS:
        yield f"{where}: not in the table"
        return
    row = METRICS.get(metric.name)
    if row is None and metric.name.split(".")[0] != "otelctx":
        yield f"{where}: no conventions have it"
    if row is not None:
        if (metric.unit, _instrument(metric)) != (row["unit"], row["instrument"]):
            yield f"{where}: {_instrument(metric)} in {metric.unit}"
        for point in metric.data.data_points:
            yield from _attributes(row, dict(point.attributes), where)
            if "bounds" in row and list(point.explicit_bounds) != row["bounds"]:
                yield f"{where}: bounds {point.explicit_bounds}"
    own = semconv.METRICS[metric.name].attributes
    for point in metric.data.data_points:
        for key, value in point.attributes.items():
            if key not in own:
                yield f"{where}: the table has no {key} there"
            elif semconv.ATTRIBUTES[key].unbounded:
                yield f"{where}: {key} makes a series of each value"
            elif (values := semconv.ATTRIBUTES[key].values) and value not in values:
                yield f"{where}: {key} is {value!r}, none of the table's {values}"
        for key, level in own.items():
            if level == "required" and key not in point.attributes:
                yield f"{where}: {key} is required"


def _instrument(metric: Any) -> str:
    if isinstance(metric.data, Histogram):
        return "histogram"
    if isinstance(metric.data, Sum):
        return "counter" if metric.data.is_monotonic else "updowncounter"
    return "gauge" if isinstance(metric.data, Gauge) else type(metric.data).__name__


def series(data: Any) -> set[tuple[str, tuple[tuple[str, Any], ...]]]:
    """Every time series: the metric's name and its attributes."""
    found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
    return {(m.name, tuple(sorted(p.attributes.items()))) for m in found for p in m.data.data_points}
