"""Which sessions are due. Pure: the store passes what it has and the time."""

from __future__ import annotations

from collections.abc import Iterable

from otelctx.sessions.record import SessionRecord

__all__ = ["due", "oldest_idle"]


def due(records: Iterable[SessionRecord], idle: float, now: float) -> list[SessionRecord]:
    """Sessions that nobody holds and that were last used more than ``idle`` seconds before ``now``."""
    return [r for r in records if r.leases == 0 and now - r.used > idle]


def oldest_idle(records: Iterable[SessionRecord]) -> SessionRecord | None:
    """The session that nobody holds and that was used least recently."""
    return min((r for r in records if r.leases == 0), key=lambda r: r.used, default=None)
