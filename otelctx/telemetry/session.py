"""``session.id`` on spans, whoever makes them: a search for a session is a search for this very text."""

from __future__ import annotations

from typing import Any

from otelctx.semconv import SESSION_ID_ATTRIBUTE
from otelctx.telemetry import sanitize

__all__ = ["session_attributes"]


def session_attributes(session_id: object) -> dict[str, Any]:
    """``session.id`` for ``session_id``, as :func:`~otelctx.telemetry.sanitize.text` makes it; empty where there is
    none, or where a peer has sent a value of another type."""
    return {SESSION_ID_ATTRIBUTE: sanitize.text(session_id)} if isinstance(session_id, str) else {}
