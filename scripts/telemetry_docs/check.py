"""Names in other files, against the table: what a configuration, a rule or a dashboard speaks of must exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from otelctx import semconv
from scripts.telemetry_docs.prometheus import label, series

__all__ = ["queries", "strings", "unknown_keys", "unknown_names"]

# Whose names the table has all of, as far as anything of ours emits or reads them.
_OURS: Final = re.compile(
    r"(?<![\w./-])(?:otelctx|gen_ai|http|rpc|url|session|error)\.[a-z][a-z0-9_]*(?:\.[a-z0-9_-]+)*"
)
_KNOWN: Final = frozenset((*semconv.ATTRIBUTES, *semconv.EVENTS, *semconv.STANDARD_EVENTS, *semconv.METRICS))
_TEMPLATES: Final = tuple(f"{a.key}." for a in semconv.ATTRIBUTES.values() if a.template)

_SERIES: Final = frozenset(name for metric in semconv.METRICS.values() for name in series(metric))
# Of the collector itself, its span_metrics connector, Prometheus and Jaeger.
_OTHERS: Final = re.compile(
    r"(?:otelcol|traces_span_metrics|jaeger|prometheus|scrape|go|process)_\w+|up|ALERTS|target_info"
)
_LABELS: Final = frozenset(label(key) for key, row in semconv.ATTRIBUTES.items() if not row.unbounded) | {
    *("le", "job", "instance", "quantile", "alertname", "alertstate", "severity", "exported_job", "exported_instance"),
    *("service_name", "service_namespace", "service_version", "deployment_environment_name", "collector_instance_id"),
    *("span_name", "span_kind", "status_code", "exporter", "receiver", "processor", "data_type", "otel_signal"),
    *("policy", "sampled", "decision", "__name__"),
}

_STRING: Final = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|`[^`]*`')
_SELECTOR: Final = re.compile(r"\{([^}]*)\}")
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGE: Final = re.compile(r"\[[^\]]*\]|\boffset\s+-?\w+|@\s*[\d.]+")
_VARIABLE: Final = re.compile(r"\$\{?\w+\}?")
_NAME: Final = re.compile(r"(?<![\w.:])([a-zA-Z_:][\w:]*)(?!\s*\()(?![\w:])")
_WORDS: Final = frozenset(("and", "or", "unless", "bool", "inf", "Inf", "NaN", "nan", "atan2", "start", "end"))


def strings(node: Any) -> Iterator[str]:
    """Every string in a parsed YAML or JSON document, keys included."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from strings(key)
            yield from strings(value)
    elif isinstance(node, list):
        for item in node:
            yield from strings(item)


def unknown_keys(document: Any) -> set[str]:
    """Dotted names in ``document`` that are spelled like attributes, events or metrics of the table and are none."""
    found = {name for text in strings(document) for name in _OURS.findall(text)}
    return {name for name in found if name not in _KNOWN and not name.startswith(_TEMPLATES)}


def queries(document: Any) -> Iterator[tuple[str, str]]:
    """``(recorded name, PromQL)`` of every rule, test and panel in ``document``; the name is empty where none is
    recorded."""
    if isinstance(document, dict):
        for key in ("expr", "query", "definition"):
            if isinstance(document.get(key), str):
                yield str(document.get("record", "")), document[key]
        for value in document.values():
            yield from queries(value)
    elif isinstance(document, list):
        for item in document:
            yield from queries(item)


def unknown_names(query: str, recorded: frozenset[str] = frozenset()) -> set[str]:
    """Series and labels in a PromQL ``query`` that nothing makes: no instrument of the table, none of the ``recorded``
    rules, and neither collector nor Prometheus. A label whose values are without number is unknown too."""
    bare = _STRING.sub('""', _VARIABLE.sub("", query))
    labels = {name for part in _SELECTOR.findall(bare) for name in re.findall(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)", part)}
    labels |= {name for part in _GROUPING.findall(bare) for name in re.findall(r"[a-zA-Z_]\w*", part)}
    rest = _RANGE.sub(" ", _GROUPING.sub(" ", _SELECTOR.sub(" ", bare)))
    names = {name for name in _NAME.findall(rest) if name not in _WORDS}
    bad = {name for name in names if name not in _SERIES | recorded and not _OTHERS.fullmatch(name)}
    return bad | (labels - _LABELS)
