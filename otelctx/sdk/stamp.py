"""``session.id`` on every span that is started where a session is current."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor

from otelctx.context.current import current_binding
from otelctx.semconv import SESSION_ID, SESSION_ID_ATTRIBUTE

__all__ = ["SessionStamp", "stamp_sessions"]


class SessionStamp(SpanProcessor):
    """Stamps spans of any library when they start: a search for a session then finds all of it, also where a span's
    parent belongs to somebody else. What a span has been given as ``session.id`` stays.
    """

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        binding = current_binding(parent_context)
        if binding is None:
            return
        found = binding.entry(SESSION_ID)
        if found is None or not isinstance(found.value, str):  # a peer may send a value of another type
            return
        if SESSION_ID_ATTRIBUTE not in (span.attributes or ()):
            span.set_attribute(SESSION_ID_ATTRIBUTE, found.value)


def stamp_sessions(provider: object) -> None:
    """Add a :class:`SessionStamp` to ``provider``, if it takes span processors at all."""
    add = getattr(provider, "add_span_processor", None)
    if callable(add):
        add(SessionStamp())
