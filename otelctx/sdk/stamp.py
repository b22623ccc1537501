"""``session.id`` on every span that is started where a session is current."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor

from otelctx.context.current import current_binding
from otelctx.semconv import SESSION_ID, SESSION_ID_ATTRIBUTE
from otelctx.telemetry.session import session_attributes

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
        if found is not None and SESSION_ID_ATTRIBUTE not in (span.attributes or ()):
            span.set_attributes(session_attributes(found.value))


def stamp_sessions(provider: object) -> None:
    """Add a :class:`SessionStamp` to ``provider``, if it takes span processors at all."""
    add = getattr(provider, "add_span_processor", None)
    if callable(add):
        add(SessionStamp())
