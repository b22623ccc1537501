"""The bases of one origin, as its sender remembers them: what they are called, never what they contain.

A REF needs a root, and a DELTA needs to know what has changed: names and leaves (16 bytes each) say that. So no value
of a session outlives it here, and a base of thirteen keys takes 0.4 kB where its state would take four.

All of it is a guess about somebody else's memory: what is forgotten costs one FULL frame, what is wrong one refusal.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from otelctx.context.state import Entry, State
from otelctx.delta.limits import ROOT_BYTES, Limits
from otelctx.delta.messages import Held

__all__ = ["HeldBase", "HeldBases"]

# Measured on CPython 3.11 (64 bit), without what is counted by length.
_BASE_BYTES: Final = 180
_SESSION_BYTES: Final = 255
_NAME_BYTES: Final = 60
_SHAPE_BYTES: Final = 100
_NEVER: Final = float("inf")

Names = tuple[str, ...]


class HeldBase:
    """A state that the origin keeps: ``root``, the names in their order, and their leaves, joined.

    ``until`` is when it must be believed gone (monotonic seconds): 60 s after the last ack in one process, never where
    every worker has it, and at once when it is forgotten here.
    """

    __slots__ = ("_leaves", "held", "names", "root", "until")

    def __init__(self, state: State, names: Names, held: Held, until: float) -> None:
        self.root = state.root
        self.names = names
        self._leaves = b"".join([item.leaf for item in state.entries()])
        self.held = held
        self.until = until

    @property
    def bytes(self) -> int:
        """Its memory, without the names, which bases share."""
        return _BASE_BYTES + len(self._leaves)

    def usable(self, shared_only: bool, now: float) -> bool:
        return now < self.until and (not shared_only or self.held is Held.SHARED)

    def diff(self, target: State) -> tuple[list[Entry], list[str]]:
        """``(put, delete)``, sorted by name, that turn this base into ``target``."""
        leaves = self._leaves
        old = {name: leaves[at * ROOT_BYTES : (at + 1) * ROOT_BYTES] for at, name in enumerate(self.names)}
        put = [item for item in target.entries() if old.get(item.name) != item.leaf]
        return put, [name for name in self.names if target.entry(name) is None]


class _Shapes:
    """Tuples of names, one of each kind, since the sessions of an application all have the same keys."""

    __slots__ = ("_users", "bytes")

    def __init__(self) -> None:
        self._users: dict[Names, tuple[Names, int]] = {}
        self.bytes = 0

    def take(self, names: Names) -> Names:
        shared, users = self._users.get(names, (names, 0))
        self._users[shared] = (shared, users + 1)
        if not users:
            self.bytes += self._cost(shared)
        return shared

    def give_back(self, names: Names) -> None:
        shared, users = self._users[names]
        if users > 1:
            self._users[shared] = (shared, users - 1)
        else:
            del self._users[shared]
            self.bytes -= self._cost(shared)

    @staticmethod
    def _cost(names: Names) -> int:
        return _SHAPE_BYTES + sum(_NAME_BYTES + len(name) for name in names)


class HeldBases:
    """States that the origin has acknowledged to hold: four a session, ``limits.held_bytes`` in all, the session whose
    last ack is longest ago given up first.

    A base in one process expires 60 s after its last ack: by then the process may have dropped it.
    """

    __slots__ = ("_bytes", "_limits", "_process", "_sessions", "_shapes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sessions: OrderedDict[str, list[HeldBase]] = OrderedDict()  # each list: acknowledged last, last
        # Those with a base in one process only. Behind a balancer each answer may be of another process than the last,
        # and to look through what all of them have would take each exchange milliseconds.
        self._process: set[str] = set()
        self._shapes = _Shapes()
        self._bytes = 0

    def __len__(self) -> int:
        """Sessions of which there are bases."""
        return len(self._sessions)

    @property
    def bytes(self) -> int:
        """Of memory, estimated."""
        return self._bytes + self._shapes.bytes

    def keep(self, state: State, held: Held, now: float) -> None:
        """The origin has said at ``now`` that it keeps ``state`` as ``held``. Without a session nothing is kept."""
        session = state.session_id
        if session is None:
            return
        bases = self._sessions.get(session)
        if bases is None:
            bases = self._sessions[session] = []
            self._bytes += _SESSION_BYTES + len(session)
        else:
            self._sessions.move_to_end(session)
        if held is Held.SHARED:
            until = _NEVER
        else:
            until = now + self._limits.base_ttl
            self._process.add(session)
        root = state.root
        for at, known in enumerate(bases):
            if known.root == root:  # the usual case: nothing has changed since the last exchange
                known.held, known.until = held, until
                if at + 1 < len(bases):
                    bases.append(bases.pop(at))
                return
        base = HeldBase(state, self._shapes.take(tuple([item.name for item in state.entries()])), held, until)
        bases.append(base)
        self._bytes += base.bytes
        if len(bases) > self._limits.bases_per_session:
            self._forget(bases, bases[0])
        while self.bytes > self._limits.held_bytes and len(self._sessions) > 1:
            self.drop(next(iter(self._sessions)))

    def best(self, state: State, *, shared_only: bool, now: float) -> HeldBase | None:
        """The base that is the state itself if it is held, else the one acknowledged last; only those that any worker
        has if asked so.
        """
        session = state.session_id
        bases = None if session is None else self._sessions.get(session)
        if not bases:
            return None
        root = state.root
        for base in bases:
            if base.root == root and base.usable(shared_only, now):
                return base
        for base in [b for b in bases if not b.usable(False, now)]:
            self._forget(bases, base)
        return next((base for base in reversed(bases) if base.usable(shared_only, now)), None)

    def drop(self, session: str | None) -> None:
        """Forget the bases of one session: the origin has lost one of them, so what of the others?"""
        bases = None if session is None else self._sessions.pop(session, None)
        if bases is not None and session is not None:
            for base in list(bases):
                self._forget(bases, base)
            self._bytes -= _SESSION_BYTES + len(session)
            self._process.discard(session)

    def drop_process(self) -> None:
        """Another process answered: what only the first one held is of no use."""
        sessions, self._process = self._process, set()
        for session in sessions:
            bases = self._sessions[session]
            for base in [b for b in bases if b.held is Held.PROCESS]:
                self._forget(bases, base)
            if not bases:
                self.drop(session)

    def _forget(self, bases: list[HeldBase], base: HeldBase) -> None:
        bases.remove(base)
        base.until = -_NEVER
        self._shapes.give_back(base.names)
        self._bytes -= base.bytes
