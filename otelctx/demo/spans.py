"""Spans as they were exported, whoever stored them, and the tree that they form. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Event", "Node", "Span", "forest"]


@dataclass(frozen=True, slots=True)
class Event:
    """``time`` in nanoseconds since the epoch."""

    name: str
    time: int
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """One exported span. Ids are hex digits, ``parent_id`` empty for a root; times in nanoseconds since the epoch."""

    trace_id: str
    span_id: str
    parent_id: str
    service: str
    name: str
    kind: str
    start: int
    end: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()

    @property
    def milliseconds(self) -> float:
        return (self.end - self.start) / 1e6


@dataclass(slots=True)
class Node:
    """A span and its children by start time."""

    span: Span
    children: list[Node] = field(default_factory=list)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Span]]:
        yield depth, self.span
        for child in self.children:
            yield from child.walk(depth + 1)


def forest(spans: Iterable[Span]) -> list[Node]:
    """The trees of one trace: one, if every parent was exported. A span whose parent is missing is a root."""
    nodes = {span.span_id: Node(span) for span in sorted(spans, key=lambda s: (s.start, -s.end))}
    roots: list[Node] = []
    for node in nodes.values():
        parent = nodes.get(node.span.parent_id)
        (roots if parent is None else parent.children).append(node)
    return roots
