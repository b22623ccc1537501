"""Where a conversation that is too long is cut: which of its oldest exchanges go. Pure; all sizes are tokens.

A client that sends its whole history again has no place where the cut of its last request is remembered. So the cut
is a function of the length alone, and of that in steps: as long as the conversation grows by less than a quarter of the
window, the same exchanges go, the prompt begins alike, and its KV is found again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

__all__ = ["cut", "fewest", "quota"]


def quota(total: int, *, window: int, reserve: int) -> int:
    """Tokens that must go from a prompt of ``total`` before ``reserve`` more fit into ``window``: the smallest multiple
    of ``window/4`` that is enough, 0 if all fits."""
    over = total + reserve - window
    step = max(1, window // 4)
    return 0 if over <= 0 else -(-over // step) * step


def fewest(size: Callable[[int], int], limit: int, most: int) -> int:
    """The smallest of 1 … ``most`` exchanges without which the prompt's ``size`` is within ``limit``, or ``most`` if
    none is enough. ``size(n)`` does not grow with ``n``; it is asked about log₂(most) times."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if size(middle) <= limit:
            high = middle
        else:
            low = middle + 1
    return low


def cut(*, window: int, head: int, turns: Sequence[int], new: int, reserve: int) -> int:
    """How many of the oldest ``turns`` go. ``head`` and ``new``, the newest exchange with the opening of the answer,
    always stay, whether they fit or not."""
    total = head + sum(turns) + new
    gone = quota(total, window=window, reserve=reserve)
    if not gone or not turns:
        return 0
    dropped = list(accumulate(turns))
    return fewest(lambda n: total - dropped[n - 1], total - gone, len(turns))
