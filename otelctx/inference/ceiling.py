"""How much a forward may be given after one that ran out of memory. Pure.

Half of what was too much is tried next. Once that has gone well for a while, twice as much may be given again, so that
a lack of memory that passes does not slow prompts down for good, and one that stays costs a failed forward only now and
then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

__all__ = ["STEADY", "Ceiling"]

STEADY: Final = 16
"""Forwards in a row without a lack of memory before more is given."""

T = TypeVar("T")


class Ceiling:
    """``limit`` is in tokens per forward, ``None`` for no limit."""

    __slots__ = ("_passed", "_top", "limit")

    def __init__(self) -> None:
        self.limit: int | None = None
        self._top = 0  # the most that was too much
        self._passed = 0

    def failed(self, tokens: int) -> None:
        """A forward of ``tokens`` tokens ran out of memory."""
        self._top = max(self._top, tokens) if self.limit is not None else tokens
        self.limit = max(1, tokens // 2)
        self._passed = 0

    def passed(self) -> None:
        """A forward had enough memory."""
        if self.limit is None:
            return
        self._passed += 1
        if self._passed >= STEADY:
            self._passed = 0
            self.limit *= 2
            if self.limit > self._top:
                self.limit = None

    def parts(self, counts: Sequence[int]) -> list[list[int]]:
        """Split a step whose items have ``counts`` tokens into forwards: for each, how many tokens of the items that
        come next are fed. No item is left out, and none is in two forwards: of what is too long for one, only the
        beginning is fed."""
        limit = self.limit
        if limit is None:
            return [list(counts)]
        parts: list[list[int]] = []
        room = 0
        for count in counts:
            count = min(count, limit)
            if count > room:
                parts.append([])
                room = limit
            parts[-1].append(count)
            room -= count
        return parts
