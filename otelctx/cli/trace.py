"""``otelctx show trace``: a trace out of Jaeger, drawn."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console

from otelctx.demo.spans import forest
from otelctx.demo.tree import draw
from otelctx.errors import ConfigError
from otelctx.testing.jaeger import JaegerQuery
from otelctx.testing.spans import SeenSpan

__all__ = ["JAEGER", "document", "jaeger_of", "show", "trace_id"]

JAEGER: Final = "http://localhost:16686"

_ID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
_NONE: Final = "0" * 32
_WIDTH: Final = 400  # columns where nobody looks at a terminal: a span is a line
_PAGE: Final = re.compile(r"\s*(https?://\S+?)/(?:trace|api/traces)/", re.IGNORECASE)


def trace_id(text: str) -> str:
    """The trace id in ``text``: alone, in a traceparent, or in an address. Raises
    :class:`~otelctx.errors.ConfigError`."""
    found: set[str] = set(_ID.findall(text.lower())) - {_NONE}
    if len(found) != 1:
        raise ConfigError(
            f"{text[:200]!r} holds no trace id: write its 32 hexadecimal digits, a traceparent, or the address of the "
            "trace in Jaeger"
        )
    return found.pop()


def jaeger_of(text: str) -> str | None:
    """The Jaeger whose page of a trace ``text`` is the address of, a path before it included; else ``None``."""
    page = _PAGE.match(text)
    return page[1] if page else None


def document(spans: Sequence[SeenSpan]) -> dict[str, Any]:
    """The trace as JSON could hold it: spans in the order of the tree, each with its depth and duration in
    seconds; the rest is as exported."""
    roots = forest(spans)
    told = [asdict(span) | {"depth": depth, "duration": span.duration} for root in roots for depth, span in root.walk()]
    return {"trace_id": spans[0].trace_id, "roots": len(roots), "spans": told}


def show(text: str, jaeger_url: str | None, *, as_json: bool) -> None:
    """Print the trace, from the Jaeger that is named, or whose address ``text`` is, or that is at the usual place.
    Raises :class:`~otelctx.errors.ConfigError` if there is none, or no Jaeger."""
    wanted = trace_id(text)
    jaeger = JaegerQuery(jaeger_url or jaeger_of(text) or JAEGER)
    try:
        jaeger.ready()
    except ConfigError as error:
        raise ConfigError(f"{error.message}; say where it is with --jaeger-url") from None
    try:
        spans = jaeger.spans(wanted)
    except (RuntimeError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"what answers at {jaeger.url} tells traces as no Jaeger does: {error}") from None
    if not spans:
        raise ConfigError(
            f"Jaeger at {jaeger.url} has no trace {wanted}: it may not have arrived yet, or was not sampled"
        )
    if as_json:
        print(json.dumps(document(spans), indent=2))
        return
    console = Console(highlight=False, width=None if os.isatty(1) else _WIDTH)
    for tree in draw(spans):
        console.print(tree)
    console.print(jaeger.link(wanted), markup=False, soft_wrap=True)
