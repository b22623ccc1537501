"""The page itself: Markdown, in the order of the table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from otelctx import semconv
from otelctx.semconv.model import Attribute, Event, Metric, Source, SpanType, Uses
from scripts.telemetry_docs.prometheus import label, series

__all__ = ["PATH", "page"]

PATH: Final = Path(__file__).parents[2] / "docs" / "telemetry.md"
# What the table can't say, by section.
_SECTION: Final = re.compile(r"<!-- (\w+) -->\n(.*?)(?=<!-- |\Z)", re.S)

_LEVELS: Final[Mapping[str, str]] = {
    "required": "required",
    "conditional": "where there is something to say",
    "recommended": "recommended",
    "opt_in": "only if asked for",
}
_SOURCES: Final[Mapping[Source, str]] = {
    "otelctx": "otelctx",
    "general": "conventions 1.44.0",
    "http": "HTTP conventions 1.44.0",
    "rpc": "RPC conventions 1.44.0",
    "gen_ai": "semantic-conventions-genai v0.1.0",
}
_INSTRUMENTS: Final = {
    "counter": "counter",
    "histogram": "histogram",
    "gauge": "gauge",
    "updowncounter": "up-down counter",
}


def page() -> str:
    """The whole page, with a line break at its end."""
    prose = dict(_SECTION.findall(Path(__file__).with_name("text.md").read_text()))
    parts = [
        prose["head"],
        "## Spans\n",
        prose["spans"],
        *(_span(span) for span in semconv.SPANS.values()),
        "## Events\n",
        prose["events"],
        *(_event(event) for event in (*semconv.EVENTS.values(), *semconv.STANDARD_EVENTS.values())),
        "## Metrics\n",
        prose["metrics"],
        *(_metric(metric) for metric in semconv.METRICS.values()),
        "## Attributes\n",
        prose["attributes"],
        *_attributes(),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head)]
    lines += [["---"] * len(lines[0]), *(list(row) for row in rows)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _key(key: str) -> str:
    row = semconv.ATTRIBUTES[key]
    return f"`{key}.<name>`" if row.template else f"`{key}`"


def _uses(attributes: Uses) -> str:
    if not attributes:
        return "No attributes.\n"
    return _table(("attribute", "requirement"), ((_key(key), _LEVELS[level]) for key, level in attributes.items()))


def _origin(row: SpanType | Event | Metric) -> str:
    return f"{_SOURCES[row.source]}, {row.stability}"


def _span(span: SpanType) -> str:
    return f"### `{span.name}`\n\n{_sentence(span.brief)} {span.kind} · {_origin(span)}.\n\n{_uses(span.attributes)}"


def _event(event: Event) -> str:
    counter = f"Counter `{event.counter}`" if event.counter else "No counter"
    flag = semconv.EVENT_FLAGS.get(event.name)
    told = f" · sets `{flag}`" if flag else ""
    if event.reasons:
        told += f" · reasons: {', '.join(f'`{reason}`' for reason in event.reasons)}"
    head = f"### `{event.name}`\n\n{_sentence(event.brief)} {counter}{told} · {_origin(event)}.\n\n"
    return head + _uses(event.attributes)


def _metric(metric: Metric) -> str:
    kind, unit = _INSTRUMENTS[metric.kind], metric.unit
    names = ", ".join(f"`{name}`" for name in series(metric))
    labels = [f"`{label(key)}`" for key in metric.attributes]
    lines = [f"{_sentence(metric.brief)} {kind.capitalize()} in `{unit}` · {_origin(metric)}.\n"]
    if metric.bounds:
        lines.append(f"Bucket bounds: {', '.join(f'{bound:.15g}' for bound in metric.bounds)}.\n")
    lines.append(f"Prometheus: {names}" + (f" with {', '.join(labels)}.\n" if labels else ".\n"))
    return f"### `{metric.name}`\n\n" + "\n".join(lines) + "\n" + _uses(metric.attributes)


def _sentence(brief: str) -> str:
    return brief[0].upper() + brief[1:] + ("" if brief.endswith(".") else ".")


def _attributes() -> Iterator[str]:
    for source in _SOURCES:
        rows = [a for a in semconv.ATTRIBUTES.values() if a.source == source]
        yield f"### {_SOURCES[source]}\n"
        yield _table(
            ("attribute", "type", "says", "values", "stability", "on metrics", "stands on"),
            (_attribute(row) for row in rows),
        )


def _attribute(row: Attribute) -> tuple[str, ...]:
    values = ", ".join(f"`{value}`" for value in row.values) or ("unbounded" if row.unbounded else "few")
    places = [f"`{place}`" for place in _places(row.key)]
    return (
        _key(row.key),
        row.type,
        row.brief,
        values,
        row.stability,
        "never" if row.unbounded else "where listed",
        ", ".join(places) if places else "nothing",
    )


def _places(key: str) -> Iterator[str]:
    for span in semconv.SPANS.values():
        if key in span.attributes:
            yield f"{span.name} ({span.kind})"
    for event in (*semconv.EVENTS.values(), *semconv.STANDARD_EVENTS.values()):
        if key in event.attributes:
            yield event.name
    for metric in semconv.METRICS.values():
        if key in metric.attributes:
            yield metric.name
