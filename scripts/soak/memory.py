"""How fast a process grows, from samples that jump. Pure.

Memory in use is a sawtooth: requests, batches and, while the collector is away, some thousand spans come and go. What
leaks raises its lower edge. So each bucket of time counts with its smallest sample, and a bucket is longer than an
outage. Through these goes Theil and Sen's line, the median of the slopes between all pairs: up to 29 % of them may be
anything. Its 95 % confidence interval (Sen's, from Kendall's tau) says what the length of a run allows to know: two
minutes tell several MiB a minute from nothing, half an hour a half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

__all__ = ["Growth", "growth", "lower_edge"]

_Z: Final = 1.96  # 95 %, two-sided
_BUCKET: Final = 15.0  # seconds, and shorter in a run that would have too few of them
_FEWEST: Final = 6
Samples = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Growth:
    """In units of the values per minute, times being seconds: the slope and its 95 % confidence interval."""

    slope: float
    low: float
    high: float
    points: int


def lower_edge(samples: Samples, buckets: int) -> list[tuple[float, float]]:
    """The smallest sample of each of ``buckets`` equal parts of the time, where there is one."""
    if not samples:
        return []
    start, end = samples[0][0], samples[-1][0]
    width = (end - start) / buckets or 1.0
    found: dict[int, tuple[float, float]] = {}
    for at, value in samples:
        bucket = min(buckets - 1, int((at - start) / width))
        if bucket not in found or value < found[bucket][1]:
            found[bucket] = (at, value)
    return [found[bucket] for bucket in sorted(found)]


def growth(samples: Samples, *, warm_up: float) -> Growth:
    """The growth after the first ``warm_up`` seconds. Raises ``ValueError`` if fewer than three buckets remain."""
    begun = samples[0][0] + warm_up if samples else 0.0
    warm = [sample for sample in samples if sample[0] >= begun]
    length = warm[-1][0] - warm[0][0] if warm else 0.0
    edge = lower_edge(warm, max(_FEWEST, int(length / _BUCKET)))
    if len(edge) < 3:
        raise ValueError(f"{len(edge)} points are too few for a slope")
    slopes = sorted((b - a) / (u - t) * 60 for (t, a), (u, b) in combinations(edge, 2))
    n = len(edge)
    spread = _Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    return Growth(median(slopes), slopes[low], slopes[high], n)
