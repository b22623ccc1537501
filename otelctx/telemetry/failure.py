"""What telemetry does when it fails itself: it says so once, and the request goes on without it.

Samplers, span processors, exporters and meters are anybody's code, and run within our calls.
"""

from __future__ import annotations

import logging
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanKind, Tracer, get_current_span
from opentelemetry.util.types import Attributes

__all__ = ["broken", "end", "start"]

_log = logging.getLogger(__name__)
_told: Final[set[tuple[str, type[BaseException]]]] = set()


def broken(what: str, error: BaseException) -> None:
    """``what`` has raised ``error``. Logged once for each class of it; ``what`` is one of a few."""
    if (what, type(error)) in _told:
        return
    _told.add((what, type(error)))
    _log.error("%s failed; requests go on without it, and this is not logged again", what, exc_info=error)


def start(
    tracer: Tracer, name: str, context: Context, kind: SpanKind, attributes: Attributes = None, *links: Link
) -> Span:
    """``tracer.start_span()``, and what goes on with the ids of the parent where that fails. Never raises."""
    try:
        return tracer.start_span(name, context, kind, attributes, links)
    except Exception as error:
        broken("the start of a span", error)
        return NonRecordingSpan(get_current_span(context).get_span_context())


def end(span: Span, end_time: int | None = None) -> None:
    """``span.end()``, which calls all span processors. Never raises."""
    try:
        span.end(end_time)
    except Exception as error:
        broken("the end of a span", error)
