"""Each owner's sessions in the order in which they were made.

The records themselves are the links of the list, so that a million sessions cost two references each, and a page of it
costs its own length.
"""

from __future__ import annotations

from otelctx.sessions.record import SessionRecord

__all__ = ["Owned"]


class Owned:
    """Belongs to one store. Not thread-safe."""

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        self._newest: dict[str, SessionRecord] = {}

    def add(self, record: SessionRecord) -> None:
        """``record`` is the newest of its owner's."""
        elder = self._newest.get(record.owner)
        if elder is not None:
            record.elder, elder.younger = elder, record
        self._newest[record.owner] = record

    def remove(self, record: SessionRecord) -> None:
        """``record`` was added before, and leaves."""
        elder, younger = record.elder, record.younger
        if elder is not None:
            elder.younger = younger
        if younger is not None:
            younger.elder = elder
        elif elder is not None:
            self._newest[record.owner] = elder
        else:
            del self._newest[record.owner]
        record.elder = record.younger = None

    def page(self, owner: str, limit: int, after: SessionRecord | None = None) -> tuple[list[SessionRecord], bool]:
        """Up to ``limit`` sessions, newest first, from the next older one than ``after`` on; and whether there are
        more. ``after`` is one of the owner's."""
        found: list[SessionRecord] = []
        record = self._newest.get(owner) if after is None else after.elder
        while record is not None and len(found) < limit:
            found.append(record)
            record = record.elder
        return found, record is not None
