"""Spans, log records and metric points as plain values, whichever way they were received."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = ["Point", "SeenEvent", "SeenLog", "SeenSpan", "only"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """One event of a span; ``time`` is Unix nanoseconds."""

    name: str
    time: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """One finished span. Ids are lower-case hex, ``parent_id`` empty for a root; ``kind`` is SERVER, CLIENT, INTERNAL,
    PRODUCER or CONSUMER; ``status`` UNSET, OK or ERROR; times are Unix nanoseconds."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    service: str
    start: int
    end: int
    status: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[SeenEvent, ...] = ()
    links: tuple[tuple[str, str], ...] = ()

    @property
    def duration(self) -> float:
        """Seconds."""
        return (self.end - self.start) / 1e9

    def event(self, name: str) -> SeenEvent:
        """The one event ``name``. Raises ``LookupError`` that lists what the span has."""
        return only([e for e in self.events if e.name == name], f"event {name!r} on {self.name!r}", self._names())

    def has_event(self, name: str) -> bool:
        return any(e.name == name for e in self.events)

    def _names(self) -> list[str]:
        return [e.name for e in self.events]


@dataclass(frozen=True, slots=True)
class SeenLog:
    """One log record. ``name`` is that of an event, else empty; ``severity`` as OpenTelemetry writes it (``INFO``); ids
    are lower-case hex, empty outside a trace; ``time`` is Unix nanoseconds."""

    name: str
    body: Any
    time: int
    severity: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    trace_id: str = ""
    span_id: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """One metric point: the value of a sum or gauge, or sum and count of a histogram."""

    attributes: Mapping[str, Any]
    value: float
    count: int = 1


def only(found: list[T], what: str, seen: Iterable[str]) -> T:
    """The one element of ``found``. Raises ``LookupError`` otherwise, with what there was instead."""
    if len(found) == 1:
        return found[0]
    how = "no" if not found else f"{len(found)} times"
    raise LookupError(f"{how} {what}; seen: {', '.join(sorted(set(seen))) or 'nothing'}")
