"""Which tokens each KV row holds, whose they are, and which row a turn gets.

A free row's columns are a cache: a turn continues the row that shares the longest beginning with its prompt, or copies
that beginning into another row. Only rows of the same owner are looked at, since how long a prompt takes would tell
others what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from otelctx.inference.budget import Ledger
from otelctx.inference.kvrows import RowKV

__all__ = ["Rows"]

Tokens = NDArray[np.int32]


class Rows:
    """The rows of ``kv``. Not thread-safe: the engine's thread owns it."""

    def __init__(self, kv: RowKV) -> None:
        self._kv = kv
        self._ledger = Ledger(kv.rows)
        self._tokens: Tokens = np.zeros((kv.rows, kv.length), np.int32)
        self._owners: list[str | None] = [None] * kv.rows
        self._used = [0] * kv.rows
        self._ticks = 0

    @property
    def busy(self) -> int:
        return self._ledger.busy

    def tokens(self, row: int) -> Tokens:
        """What ``row`` holds: int32, a view."""
        held: Tokens = self._tokens[row, : self._kv.lengths[row]]
        return held

    def take(self, ids: Tokens, owner: str, own: int | None = None) -> tuple[int, int]:
        """A row for a prompt of ``ids`` and the number of its first tokens that the row holds already; at least one
        is left to feed. ``own`` is the row that the session had last, if it had one.

        Raises :class:`~otelctx.errors.BudgetExhausted`.
        """
        source, shared = self._longest(ids, owner, own)
        free = self._ledger.free
        spare = min(
            (row for row in free if row != source or not shared),
            key=lambda row: (self._kv.lengths[row] > 0, self._used[row]),
            default=None,
        )
        if shared and source in free and (spare is None or self._loss(source, shared, own) <= self._kv.lengths[spare]):
            row = source
            self._ledger.reserve(row)
            self._kv.crop(row, shared)
        else:
            row = self._ledger.reserve(spare)
            self._kv.crop(row, 0)
            if shared:
                self._kv.copy(source, row, shared)
                self._tokens[row, :shared] = self._tokens[source, :shared]
        self._owners[row] = owner
        return row, shared

    def fed(self, row: int, ids: Sequence[int] | Tokens) -> None:
        """A step has appended ``ids`` to ``row``."""
        end = self._kv.lengths[row]
        self._tokens[row, end - len(ids) : end] = ids

    def give_back(self, row: int) -> None:
        """The turn in ``row`` is over; what the row holds stays until somebody needs it."""
        self._ledger.release(row)
        self._ticks += 1
        self._used[row] = self._ticks

    def drop_idle(self) -> int:
        """Forget the KV of all rows in which no turn runs. Returns the number of tokens dropped."""
        dropped = 0
        for row in self._ledger.free:
            dropped += self._kv.lengths[row]
            self._kv.crop(row, 0)
        return dropped

    def _longest(self, ids: Tokens, owner: str, own: int | None) -> tuple[int, int]:
        """The owner's row that shares most with ``ids``, and how much. Of equals, the session's own."""
        best, most = -1, 0
        for row in range(self._kv.rows):
            if self._owners[row] == owner:
                shared = min(_shared(self.tokens(row), ids), len(ids) - 1)
                if shared > most or (shared == most and row == own):
                    best, most = row, shared
        return best, most

    def _loss(self, row: int, shared: int, own: int | None) -> int:
        """Columns that somebody else may still want and that continuing ``row`` after ``shared`` of them destroys."""
        return 0 if row == own else self._kv.lengths[row] - shared


def _shared(held: Tokens, ids: Tokens) -> int:
    length = min(len(held), len(ids))
    differs = held[:length] != ids[:length]
    return int(differs.argmax()) if differs.any() else length
