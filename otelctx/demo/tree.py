"""A trace, drawn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich.text import Text
from rich.tree import Tree

from otelctx import semconv
from otelctx.demo.spans import Node, forest
from otelctx.testing.spans import SeenSpan

__all__ = ["draw"]

# What is worth a line beside a span: attribute → how it is called there.
_SHOWN: Final = {
    semconv.HTTP_RESPONSE_STATUS_CODE: "status",
    semconv.ERROR_TYPE: "error",
    semconv.FRAME_KIND: "frame",
    semconv.GEN_AI_INPUT_TOKENS: "in",
    semconv.GEN_AI_CACHE_READ_TOKENS: "reused",
    semconv.TOKENS_PREFILLED: "prefilled",
    semconv.GEN_AI_OUTPUT_TOKENS: "out",
    semconv.OUTCOME: "outcome",
    semconv.WINDOW_USED: "window",
    semconv.DISCONNECTED: "client gone",
}
_EVENT_SHOWN: Final = {
    semconv.REASON: "reason",
    semconv.ACTION: "action",
    semconv.TOKENS_BEFORE: "before",
    semconv.TOKENS_AFTER: "after",
    semconv.TOKENS_LIMIT: "limit",
}
_COLOURS: Final = ("cyan", "magenta", "green", "yellow")


def draw(spans: Iterable[SeenSpan]) -> list[Tree]:
    """One tree for each root of the trace. A line that is too long goes on below, unless it is printed with
    ``soft_wrap``: then it is cut."""
    spans = list(spans)
    services = list(dict.fromkeys(span.service for span in sorted(spans, key=lambda s: s.start)))
    colours = {service: _COLOURS[index % len(_COLOURS)] for index, service in enumerate(services)}
    trees: list[Tree] = []
    for root in forest(spans):
        tree = Tree(_label(root.span, colours), guide_style="dim")
        _grow(tree, root, colours)
        trees.append(tree)
    return trees


def _grow(tree: Tree, node: Node, colours: dict[str, str]) -> None:
    for event in node.span.events:
        after = (event.time - node.span.start) / 1e6
        text = Text(f"• {event.name}", style="bold red")
        tree.add(text.append(f"  at {after:.0f} ms{_facts(event.attributes, _EVENT_SHOWN)}", style="default"))
    for child in node.children:
        _grow(tree.add(_label(child.span, colours)), child, colours)


def _label(span: SeenSpan, colours: dict[str, str]) -> Text:
    text = Text(span.service, style=colours[span.service])
    text.append(f"  {span.name}", style="bold default")
    return text.append(f"  {span.kind} {span.duration * 1000:.1f} ms{_facts(span.attributes, _SHOWN)}", style="default")


def _facts(attributes: Any, shown: dict[str, str]) -> str:
    found = [f"{label}={attributes[key]}" for key, label in shown.items() if key in attributes]
    return "  " + " ".join(found) if found else ""
