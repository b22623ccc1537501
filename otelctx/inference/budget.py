"""What KV memory costs, and the one ledger that hands it out. Pure.

    bytes = 2 · layers · kv_heads · head_dim · bytes per element · tokens

It is linear in the tokens. (Attention's *compute* over a prompt is quadratic, its memory is not.)
"""

from __future__ import annotations

from otelctx.errors import BudgetExhausted

__all__ = ["Ledger", "kv_bytes"]


def kv_bytes(*, layers: int, kv_heads: int, head_dim: int, element: int, tokens: int) -> int:
    """Bytes of KV for ``tokens`` tokens; ``element`` is bytes per number (4 for fp32, 2 for bf16)."""
    return 2 * layers * kv_heads * head_dim * element * tokens


class Ledger:
    """KV rows of a batch: the unit of admission. ``reserve`` and ``release`` balance, whatever happens in between.

    Every row is memory of its own from the beginning, so two turns can't be promised the same: a turn has a row or it
    waits. What it may fill of that row is counted too, as the measure of how loaded the engine is. One thread owns the
    ledger; :attr:`reserved` and :attr:`budget` are plain integers that any thread may read.
    """

    __slots__ = ("_free", "_tokens", "budget", "reserved", "rows")

    def __init__(self, rows: int, window: int) -> None:
        """``rows`` of ``window`` tokens each."""
        if rows < 1 or window < 1:
            raise ValueError(f"at least one row and one token are needed, not {rows} and {window}")
        self.rows = rows
        self.budget = rows * window
        self.reserved = 0  # tokens that running turns may fill, of ``budget``
        self._tokens = [0] * rows
        self._free = list(range(rows - 1, -1, -1))

    @property
    def busy(self) -> int:
        return self.rows - len(self._free)

    @property
    def free(self) -> list[int]:
        """Rows that no turn runs in: their KV is a cache and may be taken."""
        return list(self._free)

    def reserve(self, row: int | None = None, tokens: int = 0) -> int:
        """Take ``row``, or any, for a turn that may fill ``tokens`` of it. Raises
        :class:`~otelctx.errors.BudgetExhausted`."""
        if not self._free or (row is not None and row not in self._free):
            raise BudgetExhausted(f"no free row: {self.busy} of {self.rows} in use")
        if row is None:
            row = self._free[-1]
        self._free.remove(row)
        self._tokens[row] = min(tokens, self.budget // self.rows)
        self.reserved += self._tokens[row]
        return row

    def release(self, row: int) -> None:
        """Give ``row`` back. Giving back a free row is a mistake of the caller's and raises ``ValueError``."""
        if row in self._free or not 0 <= row < self.rows:
            raise ValueError(f"row {row} is not in use")
        self._free.append(row)
        self.reserved -= self._tokens[row]
        self._tokens[row] = 0
