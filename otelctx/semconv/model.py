"""What a row of each table says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Attribute", "Event", "Level", "Metric", "Source", "SpanKind", "SpanType", "Stability", "Uses", "uses"]

Level = Literal["required", "conditional", "recommended", "opt_in"]
# Whose name it is: ours; the conventions 1.44.0 of general attributes, HTTP and RPC; semantic-conventions-genai v0.1.0.
Source = Literal["otelctx", "general", "http", "rpc", "gen_ai"]
Stability = Literal["stable", "development"]
SpanKind = Literal["SERVER", "CLIENT", "INTERNAL"]
Uses = Mapping[str, Level]


def uses(
    *,
    required: Iterable[str] = (),
    conditional: Iterable[str] = (),
    recommended: Iterable[str] = (),
    opt_in: Iterable[str] = (),
) -> dict[str, Level]:
    """Which attributes may stand somewhere, each with its requirement level; ``conditional``: always, where there is
    something to say."""
    levels: tuple[tuple[Level, Iterable[str]], ...] = (
        ("required", required),
        ("conditional", conditional),
        ("recommended", recommended),
        ("opt_in", opt_in),
    )
    return {key: level for level, keys in levels for key in keys}


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute key.

    ``type`` is spelled as OpenTelemetry does; ``values`` are all there are, if they are few. ``unbounded``: its values
    come from outside or are without number, so that it never stands on a metric. ``template``: the key goes on after a
    dot, with a name that is made of a header's, say.
    """

    key: str
    type: Literal["string", "int", "double", "boolean", "string[]"]
    brief: str
    values: tuple[str, ...] = ()
    unbounded: bool = False
    source: Source = "otelctx"
    stability: Stability = "development"
    template: bool = False


@dataclass(frozen=True, slots=True)
class Metric:
    """One instrument: name, kind, unit (UCUM), the attributes it may carry, and its bucket bounds if a histogram."""

    name: str
    kind: Literal["counter", "histogram", "gauge", "updowncounter"]
    unit: str
    brief: str
    attributes: Uses
    bounds: tuple[float, ...] = ()
    source: Source = "otelctx"
    stability: Stability = "development"


@dataclass(frozen=True, slots=True)
class Event:
    """One event, the counter that goes with it (none for an event of the conventions), and its attributes.

    ``reasons`` are the values that its ``otelctx.reason`` has.
    """

    name: str
    counter: str
    brief: str
    attributes: Uses
    reasons: tuple[str, ...] = ()
    source: Source = "otelctx"
    stability: Stability = "development"


@dataclass(frozen=True, slots=True)
class SpanType:
    """One type of span. ``name`` is made of the attributes in braces; what stands in brackets is left out where there
    is no such attribute."""

    id: str
    name: str
    kind: SpanKind
    brief: str
    attributes: Uses
    source: Source = "otelctx"
    stability: Stability = "development"
