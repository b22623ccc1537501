"""A 99th percentile in bounded memory. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

__all__ = ["Tail"]

# From 1/64 to 64 in steps of 4.4 %.
_GRID: Final[tuple[float, ...]] = tuple(2.0 ** (n / 16) for n in range(-96, 97))


class Tail:
    """Counts numbers of at least 0 in about 200 fixed buckets, whatever their number.

    A percentile is given as the lower end of its bucket: at most 4.4 % too low between 1/64 and 64, and never too high.
    Each of ``exact`` is where a bucket begins, so to ask whether the percentile is at least one of them, or below it,
    is answered as if every number had been kept.
    """

    __slots__ = ("_bounds", "_counts", "count")

    def __init__(self, exact: Iterable[float] = ()) -> None:
        self._bounds = sorted({*_GRID, *exact})
        self.count = 0
        self._counts = [0] * (len(self._bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_right(self._bounds, value)] += 1
        self.count += 1

    def clear(self) -> None:
        self.count = 0
        self._counts = [0] * len(self._counts)

    def p99(self, more: Iterable[float] = ()) -> float:
        """The nearest-rank 99th percentile (below 100 numbers: the greatest) of what was added, and of ``more``, which
        is not kept; 0 of nothing."""
        counts, total = self._counts, self.count
        extra = [bisect_right(self._bounds, value) for value in more]
        if extra:
            counts = list(counts)
            for bucket in extra:
                counts[bucket] += 1
            total += len(extra)
        above = total // 100  # so many lie beyond the percentile's rank
        for bucket in range(len(counts) - 1, 0, -1):
            above -= counts[bucket]
            if above < 0:
                return self._bounds[bucket - 1]
        return 0.0
