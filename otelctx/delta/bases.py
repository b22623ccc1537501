"""What a receiver keeps of the states it has seen, so that a later frame can refer to them.

A base is a cache entry and nothing else: dropping any of them at any moment only costs the sender one FULL frame. So
the rules are about fairness and memory alone. They are all least recently used first: within a session, so that one
that changes with every request does not push out what it returns to; within a client, once it is the largest.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from otelctx.context.state import State
from otelctx.delta.limits import BASE_BYTES, Limits

__all__ = ["Base", "BaseCache", "memory"]

# Measured on CPython 3.11 (64 bit): an Entry with its leaf and dict slot, and a State with its map and root and the
# cache's own bookkeeping of one base. Text is counted as its UTF-8, of which it never takes more in memory.
_ENTRY_BYTES: Final = 185
_STATE_BYTES: Final = 850


def memory(state: State) -> int:
    """Bytes of memory that keeping ``state`` costs: an estimate, seldom too low."""
    return _STATE_BYTES + _ENTRY_BYTES * len(state) + state.size


@dataclass(eq=False, slots=True)
class Base:
    """A kept state, the client it came from, and what it costs in bytes of memory. ``kept`` ends when it is dropped,
    for those who have a reference to it."""

    domain: str
    state: State
    client: str
    cost: int
    kept: bool = True


class BaseCache:
    """Bases per (trust domain, root): at most four a session and ``limits.base_bytes`` in all.

    Over the budget, the largest client loses its least recently used base first: one noisy client can't push out the
    rest.
    """

    __slots__ = ("_by_client", "_by_prefix", "_by_session", "_client_bytes", "_largest", "_limits", "bytes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_prefix: dict[tuple[str, bytes], Base] = {}
        self._by_session: dict[tuple[str, str], list[bytes]] = {}  # least recently used first
        self._by_client: dict[str, OrderedDict[tuple[str, bytes], None]] = {}
        self._client_bytes: dict[str, int] = {}
        # Heap of (−bytes, client): the present ones of each client, and some of before. To look through all clients for
        # the largest would take longer than all else, where there are thousands.
        self._largest: list[tuple[int, str]] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._by_prefix)

    def get(self, domain: str, root: bytes) -> State | None:
        """The state kept under ``root``, or under its first 8 bytes: the root check of the result decides."""
        key = (domain, root[:BASE_BYTES])
        base = self._by_prefix.get(key)
        if base is None:
            return None
        self._by_client[base.client].move_to_end(key)
        return base.state

    def base(self, domain: str, root: bytes) -> Base | None:
        """What is kept under the 16 bytes of ``root``. This is no use of it."""
        base = self._by_prefix.get((domain, root[:BASE_BYTES]))
        return base if base is not None and base.state.root == root else None

    def use(self, base: Base) -> None:
        """``base``, which must be kept, has been used: it is the last of its session's and of its client's to go."""
        key = (base.domain, base.state.root[:BASE_BYTES])
        self._by_client[base.client].move_to_end(key)
        roots = self._by_session[(base.domain, base.state.session_id or "")]
        if roots[-1] != key[1]:
            roots.remove(key[1])
            roots.append(key[1])

    def put(self, domain: str, state: State, client: str) -> bool:
        """Keep ``state``; whether it is kept. A state without a session is not: nobody could refer to it."""
        session = state.session_id
        if session is None:
            return False
        key = (domain, state.root[:BASE_BYTES])
        known = self._by_prefix.get(key)
        if known is not None:
            self.use(known)
            return known.state.root == state.root
        base = Base(domain, state, client, memory(state))
        if base.cost > self._limits.base_bytes:
            return False
        self._by_prefix[key] = base
        self._by_client.setdefault(client, OrderedDict())[key] = None
        self._weigh(client, base.cost)
        self.bytes += base.cost
        roots = self._by_session.setdefault((domain, session), [])
        roots.append(key[1])
        if len(roots) > self._limits.bases_per_session:
            self._drop((domain, roots[0]))
        while self.bytes > self._limits.base_bytes:
            self._drop(next(iter(self._by_client[self._heaviest()])))
        return key in self._by_prefix

    def _weigh(self, client: str, more: int) -> None:
        weights = self._client_bytes
        weights[client] = weight = weights.get(client, 0) + more
        if weight == 0:
            del weights[client]
            return
        heappush(self._largest, (-weight, client))
        if len(self._largest) > 2 * len(weights) + 64:
            self._largest = [(-weight, client) for client, weight in weights.items()]
            heapify(self._largest)

    def _heaviest(self) -> str:
        """The client with the most bytes."""
        while True:
            weight, client = self._largest[0]
            if self._client_bytes.get(client) == -weight:
                return client
            heappop(self._largest)

    def clear(self) -> None:
        """Forget everything."""
        for key in list(self._by_prefix):
            self._drop(key)

    def _drop(self, key: tuple[str, bytes]) -> None:
        base = self._by_prefix.pop(key)
        base.kept = False
        self.bytes -= base.cost
        owned = self._by_client[base.client]
        del owned[key]
        self._weigh(base.client, -base.cost)
        if not owned:
            del self._by_client[base.client]
        session = (base.domain, base.state.session_id or "")
        roots = self._by_session[session]
        roots.remove(key[1])
        if not roots:
            del self._by_session[session]
