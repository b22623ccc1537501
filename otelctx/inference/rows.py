"""Which tokens each KV row holds, whose they are, and which row a turn gets.

A free row's columns are a cache: a turn continues the row that shares the longest beginning with its prompt, or copies
that beginning into another row. Only rows of the same owner are looked at, since how long a prompt takes would tell
others what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otelctx.inference.budget import Ledger
from otelctx.inference.kvrows import RowKV
from otelctx.inference.reuse import NOTHING, Hope, Loss, Miss, miss

__all__ = ["Rows", "Taken"]

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Taken:
    """``row`` holds the first ``reused`` tokens of the turn's prompt; ``miss`` says why not more, ``None`` if there was
    no more to be had."""

    row: int
    reused: int
    miss: Miss | None = None


class Rows:
    """The rows of ``kv``. Not thread-safe: the engine's thread owns it."""

    def __init__(self, kv: RowKV) -> None:
        self._kv = kv
        self._ledger = Ledger(kv.rows, kv.length)
        self._tokens: Tokens = np.zeros((kv.rows, kv.length), np.int32)
        self._owners: list[str | None] = [None] * kv.rows
        self._used = [0] * kv.rows
        self._dropped: set[int] = set()  # rows of which their owner's tokens were forgotten
        self._ticks = 0

    @property
    def reserved(self) -> int:
        """Tokens that the running turns may fill, of :attr:`budget`. From any thread."""
        return self._ledger.reserved

    @property
    def budget(self) -> int:
        """Tokens that fit into all rows. From any thread."""
        return self._ledger.budget

    @property
    def busy(self) -> int:
        return self._ledger.busy

    def tokens(self, row: int) -> Tokens:
        """What ``row`` holds: int32, a view."""
        held: Tokens = self._tokens[row, : self._kv.lengths[row]]
        return held

    def take(self, ids: Tokens, owner: str, hope: Hope = NOTHING, room: int = 0) -> Taken:
        """A row for a prompt of ``ids`` that holds as many of its first tokens as any row of the owner's does; at least
        one is left to feed. ``hope`` is what the turn expects; ``room`` are the tokens that it may fill.

        Raises :class:`~otelctx.errors.BudgetExhausted`.
        """
        source, shared = self._longest(ids, owner, hope.row)
        held = self._kv.lengths[source] if shared else self._held(owner)
        missed = miss(hope, prompt=len(ids), shared=shared, held=held, loss=self._lost(ids, owner, hope))
        free = self._ledger.free
        spare = min(
            (row for row in free if row != source or not shared),
            key=lambda row: (self._kv.lengths[row] > 0, self._used[row]),
            default=None,
        )
        if shared and source in free and (spare is None or self._loss(source, shared, hope) <= self._kv.lengths[spare]):
            row = self._ledger.reserve(source, room)
            self._kv.crop(row, shared)
        else:
            row = self._ledger.reserve(spare, room)
            self._kv.crop(row, 0)
            if shared:
                self._kv.copy(source, row, shared)
                self._tokens[row, :shared] = self._tokens[source, :shared]
        self._owners[row] = owner
        self._dropped.discard(row)
        return Taken(row, shared, missed)

    def crop(self, row: int, length: int) -> None:
        """Keep the first ``length`` tokens of ``row``, in which a turn runs: other ones will be fed behind them."""
        self._kv.crop(row, length)
        self._dropped.add(row)

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
            if self._kv.lengths[row]:
                dropped += self._kv.lengths[row]
                self._kv.crop(row, 0)
                self._dropped.add(row)
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

    def _held(self, owner: str) -> int:
        """The most tokens that a row of the owner's holds."""
        return max((n for n, whose in zip(self._kv.lengths, self._owners, strict=True) if whose == owner), default=0)

    def _lost(self, ids: Tokens, owner: str, hope: Hope) -> Loss | None:
        """What became of the row that the turn might have had; ``None`` if it is still the turn's."""
        if not hope.kept:
            dropped = any(self._owners[row] == owner for row in self._dropped)
            return "dropped" if dropped else "cold"
        if hope.row is None:
            return "cold"
        if self._owners[hope.row] != owner:
            return "row_taken"
        if hope.row in self._dropped or (not self._kv.lengths[hope.row] and hope.row in self._ledger.free):
            return "dropped"
        return None if _shared(self.tokens(hope.row), ids) > hope.head else "row_taken"

    def _loss(self, row: int, shared: int, hope: Hope) -> int:
        """Columns that somebody else may still want and that continuing ``row`` after ``shared`` of them destroys."""
        return 0 if row == hope.row else self._kv.lengths[row] - shared


def _shared(held: Tokens, ids: Tokens) -> int:
    length = min(len(held), len(ids))
    differs = held[:length] != ids[:length]
    return int(differs.argmax()) if differs.any() else length
