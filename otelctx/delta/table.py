"""The static table by revision: which key an id stands for, and which keys have one.

Ids are added and never changed, so a table of revision 2 contains that of revision 1. A key that came with revision 2
goes by its id in frames of revision 2 and by its literal name in those of revision 1, whose readers don't know the id.
Acks are read by senders of any age: in them only the ids of the first revision are written, and names otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otelctx.semconv import STATIC_TABLE, TABLE_SINCE

__all__ = ["TABLE", "Table"]


class Table:
    """``names`` are all ids with their keys, ``since`` the revisions of those that the first one did not have."""

    __slots__ = ("_ids", "_names", "revision")

    def __init__(self, names: Mapping[int, str], since: Mapping[int, int]) -> None:
        self.revision: Final = max(since.values(), default=1)
        revisions = range(1, self.revision + 1)
        self._names = [{i: n for i, n in names.items() if since.get(i, 1) <= revision} for revision in revisions]
        self._ids = [{name: key_id for key_id, name in names.items()} for names in self._names]

    def names(self, revision: int) -> Mapping[int, str]:
        """id → key, as of ``revision``, or of the newest that is known here."""
        return self._names[min(revision, self.revision) - 1]

    def ids(self, revision: int) -> Mapping[str, int]:
        """key → id, likewise."""
        return self._ids[min(revision, self.revision) - 1]


TABLE: Final = Table(STATIC_TABLE, TABLE_SINCE)
