"""The tree that exported spans form, and how it is drawn."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from otelctx.demo.spans import forest
from otelctx.demo.tree import draw
from otelctx.testing.spans import SeenEvent, SeenSpan

MS = 1_000_000


def span(span_id: str, parent: str, start: int, end: int, **more: Any) -> SeenSpan:
    return SeenSpan(
        trace_id="t",
        span_id=span_id,
        parent_id=parent,
        name=f"name {span_id}",
        kind="SERVER",
        service=f"service-{span_id}",
        start=start * MS,
        end=end * MS,
        status="UNSET",
        **more,
    )


SPANS = [
    span("c", "a", 5, 9),
    span("b", "a", 1, 4, events=(SeenEvent("otelctx.truncation", 3 * MS, {"otelctx.tokens.before": 9}),)),
    span("a", "", 0, 10, attributes={"http.response.status_code": 200}),
    span("lost", "nobody", 2, 3),
]


def test_children_follow_their_parent_by_start_and_a_lost_parent_makes_a_root() -> None:
    roots = forest(SPANS)
    assert [[(depth, s.span_id) for depth, s in root.walk()] for root in roots] == [
        [(0, "a"), (1, "b"), (1, "c")],
        [(0, "lost")],
    ]


def test_nothing_of_the_drawing_is_cut_off_on_a_narrow_terminal() -> None:
    out = io.StringIO()
    attributes = {"http.response.status_code": 500, "error.type": "RuntimeError", "otelctx.frame.kind": "full"}
    for tree in draw([span("a", "", 0, 10, attributes=attributes)]):
        Console(file=out, width=40).print(tree)
    assert out.getvalue().split()[-3:] == ["status=500", "error=RuntimeError", "frame=full"]


def test_the_drawing_shows_durations_and_events() -> None:
    out = io.StringIO()
    for tree in draw(SPANS):
        Console(file=out, width=120).print(tree)
    text = out.getvalue()
    assert "name a  SERVER 10.0 ms  status=200" in text
    assert "• otelctx.truncation  at 2 ms  before=9" in text
    assert text.index("name b") < text.index("name c") < text.index("name lost")
