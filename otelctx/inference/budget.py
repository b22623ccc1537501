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
    """KV rows of a batch: the unit of admission. ``reserve`` and ``release`` balance, whatever happens in between."""

    __slots__ = ("_free", "rows")

    def __init__(self, rows: int) -> None:
        if rows < 1:
            raise ValueError(f"at least one row is needed, not {rows}")
        self.rows = rows
        self._free = list(range(rows - 1, -1, -1))

    @property
    def busy(self) -> int:
        return self.rows - len(self._free)

    @property
    def free(self) -> list[int]:
        """Rows that no turn runs in: their KV is a cache and may be taken."""
        return list(self._free)

    def reserve(self, row: int | None = None) -> int:
        """Take ``row``, or any. Raises :class:`~otelctx.errors.BudgetExhausted`."""
        if not self._free or (row is not None and row not in self._free):
            raise BudgetExhausted(f"no free row: {self.busy} of {self.rows} in use")
        if row is None:
            return self._free.pop()
        self._free.remove(row)
        return row

    def release(self, row: int) -> None:
        """Give ``row`` back. Giving back a free row is a mistake of the caller's and raises ``ValueError``."""
        if row in self._free or not 0 <= row < self.rows:
            raise ValueError(f"row {row} is not in use")
        self._free.append(row)
