"""Which worker a session belongs to: Redis Cluster's 16384 slots, handed to workers by rendezvous hashing. Pure.

Every process that knows the same workers comes to the same answer, whatever order it was told them in. When a worker
leaves, only its own slots move; when one comes, slots move only to it.

Load is bounded as in "Consistent Hashing with Bounded Loads" (Mirrokni, Thorup, Zadimoghaddam, 2016): a worker that has
``bound`` times the average is passed over for the next in the slot's order.
"""

from __future__ import annotations

import math
from binascii import crc_hqx
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

__all__ = ["SLOTS", "SlotTable", "capacity", "least_loaded", "place", "slot_of"]

SLOTS: Final = 16384
_UNBOUNDED: Final = 2**62


def slot_of(key: str | bytes) -> int:
    """The slot of ``key`` in [0, 16384): CRC16-XMODEM, of what stands between the first ``{`` and the next ``}`` if
    there is something, as the Redis Cluster specification has it.
    """
    data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    start = data.find(b"{")
    if start >= 0:
        end = data.find(b"}", start + 1)
        if end > start + 1:
            data = data[start + 1 : end]
    return crc_hqx(data, 0) % SLOTS


class SlotTable:
    """The order of ``nodes`` for each slot: the first owns it, the others follow if it can't.

    Orders are made when they are first asked for and kept, at most one a slot.
    """

    __slots__ = ("_keys", "_orders", "nodes")

    def __init__(self, nodes: Iterable[str]) -> None:
        self.nodes: Final = tuple(sorted(set(nodes)))
        self._keys = [(node, blake2b(node.encode(), digest_size=32).digest()) for node in self.nodes]
        self._orders: dict[int, tuple[str, ...]] = {}

    def order(self, slot: int) -> tuple[str, ...]:
        """All nodes, that with the highest weight for ``slot`` first; equal weights by name."""
        found = self._orders.get(slot)
        if found is None:
            text = slot.to_bytes(2, "big")
            weights = [(blake2b(text, key=key, digest_size=8).digest(), node) for node, key in self._keys]
            weights.sort(reverse=True)
            found = self._orders[slot] = tuple([node for _, node in weights])
        return found


def capacity(total: int, nodes: int, bound: float, floor: int = 0) -> int:
    """How much load one of ``nodes`` may have when ``total`` is the load of all, the new request included.

    ``bound`` is at least 1, infinity for none; under ``floor`` no node counts as loaded, whatever the average.
    """
    share = bound * total / nodes
    return _UNBOUNDED if math.isinf(share) else max(floor, math.ceil(share))


def place(order: Sequence[str], loads: Mapping[str, int], bound: float, floor: int = 0) -> str | None:
    """The first of ``order`` (those that can take a request, the slot's owner first) whose load is under the bound.

    ``loads`` are the requests running on each. ``None`` only for an empty ``order``: with a bound of 1 or more, not
    every node can be over it.
    """
    if not order:
        return None
    limit = capacity(sum(loads[node] for node in order) + 1, len(order), bound, floor)
    for node in order:
        if loads[node] < limit:
            return node
    return least_loaded(order, loads)  # a bound under 1


def least_loaded(order: Sequence[str], loads: Mapping[str, int]) -> str | None:
    """The node with the least load; among equals the first of ``order``."""
    return min(order, key=loads.__getitem__, default=None)
