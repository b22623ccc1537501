"""Which sessions are due. Pure: the store passes its records, least recently used first, and the time.

Both stop at the first record that settles it, so that a look at a store of many sessions costs what it finds.
"""

from __future__ import annotations

from collections.abc import Iterable

from otelctx.sessions.record import SessionRecord

__all__ = ["due", "oldest_idle"]


def due(records: Iterable[SessionRecord], idle: float, now: float) -> list[SessionRecord]:
    """Sessions that nobody holds and that were last used more than ``idle`` seconds before ``now``."""
    found: list[SessionRecord] = []
    for record in records:
        if now - record.used <= idle:
            break
        if record.leases == 0:
            found.append(record)
    return found


def oldest_idle(records: Iterable[SessionRecord]) -> SessionRecord | None:
    """The session that nobody holds and that was used least recently."""
    return next((record for record in records if record.leases == 0), None)
