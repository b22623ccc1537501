"""The tree that the spans of a trace form. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from otelctx.testing.spans import SeenSpan

__all__ = ["Node", "forest"]


@dataclass(slots=True)
class Node:
    """A span and its children by start time."""

    span: SeenSpan
    children: list[Node] = field(default_factory=list)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, SeenSpan]]:
        """Every span below, with its depth, parents first."""
        yield depth, self.span
        for child in self.children:
            yield from child.walk(depth + 1)


def forest(spans: Iterable[SeenSpan]) -> list[Node]:
    """The trees of one trace: one, if every parent was exported. A span whose parent is missing is a root."""
    nodes = {span.span_id: Node(span) for span in sorted(spans, key=lambda s: (s.start, -s.end))}
    roots: list[Node] = []
    for node in nodes.values():
        parent = nodes.get(node.span.parent_id)
        (roots if parent is None else parent.children).append(node)
    return roots
