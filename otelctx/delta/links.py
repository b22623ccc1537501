"""What a sender remembers of one origin: the bases it holds, the processes behind it, and how often it lost a base.

All of it is a guess about somebody else's memory, so all of it may be wrong: a base may be gone, a process may have
been replaced. The receiver has the last word (412), and what is kept here only decides how often it must speak it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from otelctx.context.state import State
from otelctx.delta.bases import memory
from otelctx.delta.limits import Limits
from otelctx.delta.messages import Held

__all__ = ["Answerer", "BootIds", "HeldBases", "NackBudget"]

_REMEMBERED_IDS: Final = 8  # earlier processes of one origin


@dataclass(slots=True)
class _HeldBase:
    state: State
    held: Held
    expires: float
    cost: int

    def usable(self, shared_only: bool, now: float) -> bool:
        return self.held is Held.SHARED or (not shared_only and now < self.expires)


class HeldBases:
    """States that the origin has acknowledged to hold, per session; LRU over sessions, four a session.

    A base in one process expires 60 s after its last ack: by then the process may have dropped it.
    """

    __slots__ = ("_limits", "_sessions", "bytes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sessions: OrderedDict[str, OrderedDict[bytes, _HeldBase]] = OrderedDict()
        self.bytes = 0  # of memory, as :func:`memory` estimates it

    def keep(self, state: State, held: Held, now: float) -> None:
        """The origin has said at ``now`` that it keeps ``state`` as ``held``. Without a session nothing is kept."""
        session = state.session_id
        if session is None:
            return
        bases = self._sessions.setdefault(session, OrderedDict())
        self._sessions.move_to_end(session)
        expires = now + self._limits.base_ttl
        known = bases.get(state.root)
        if known is not None:  # the usual case: nothing has changed since the last exchange
            known.held, known.expires = held, expires
            bases.move_to_end(state.root)
            return
        base = bases[state.root] = _HeldBase(state, held, expires, memory(state))
        self.bytes += base.cost
        if len(bases) > self._limits.bases_per_session:
            self._forget(bases, next(iter(bases)))
        if len(self._sessions) > self._limits.held_sessions:
            self.drop(next(iter(self._sessions)))

    def best(self, state: State, *, shared_only: bool, now: float) -> State | None:
        """The state itself if it is held, else the base acknowledged last; only ones that any worker has if asked
        so.
        """
        session = state.session_id
        bases = None if session is None else self._sessions.get(session)
        if not bases:
            return None
        exact = bases.get(state.root)
        if exact is not None and exact.usable(shared_only, now):
            return exact.state
        for root in [r for r, b in bases.items() if not b.usable(False, now)]:
            self._forget(bases, root)
        return next((b.state for b in reversed(bases.values()) if b.usable(shared_only, now)), None)

    def drop(self, session: str | None) -> None:
        """Forget the bases of one session: the origin has lost one of them, so what of the others?"""
        bases = None if session is None else self._sessions.pop(session, None)
        if bases is not None:
            self.bytes -= sum(base.cost for base in bases.values())

    def drop_process(self) -> None:
        """Another process answered: what only the first one held is of no use."""
        for session in list(self._sessions):
            bases = self._sessions[session]
            for root in [r for r, b in bases.items() if b.held is Held.PROCESS]:
                self._forget(bases, root)
            if not bases:
                del self._sessions[session]

    def _forget(self, bases: OrderedDict[bytes, _HeldBase], root: bytes) -> None:
        self.bytes -= bases.pop(root).cost


class Answerer(Enum):
    """Who sent an ack, as far as its boot id tells."""

    SAME = auto()  # the process that the link knows
    OTHER = auto()  # its successor, or another one behind a balancer: the link knows this one from now on
    EARLIER = auto()  # not the known one, but the exchange had begun before that was known: no news


class BootIds:
    """Tells a restart from a balancer by the boot ids of the acks.

    A restart replaces one id by another for good; only exchanges that were under way may still be answered by the old
    process, seconds or minutes later, and say nothing. A balancer returns to an earlier id on an exchange *begun* after
    its successor had answered, or shows three ids within a minute: from then on only shared bases are used, for ten
    minutes.
    """

    __slots__ = ("_balanced_until", "_current", "_earlier", "_heard", "_limits", "_since", "_switches")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._current: int | None = None
        self._since = float("-inf")  # when the current id was first acked,
        self._heard = float("-inf")  # and when last
        self._earlier: OrderedDict[int, float] = OrderedDict()  # id → when last acked
        self._switches = 0
        self._balanced_until = float("-inf")

    def seen(self, boot_id: int, *, began: float, now: float) -> Answerer:
        """Note the id of an ack that came at ``now`` to an exchange begun at ``began``."""
        if boot_id == self._current:
            self._heard = now
            return Answerer.SAME
        if self._current is None:
            self._current, self._since, self._heard = boot_id, now, now
            return Answerer.SAME
        if began < self._since:
            self._remember(boot_id, self._earlier.get(boot_id, now))
            return Answerer.EARLIER
        returned = self._earlier.pop(boot_id, None) is not None
        self._remember(self._current, self._heard)
        recent = sum(now - heard <= self._limits.boot_window for heard in self._earlier.values())
        if returned or recent + 1 >= self._limits.boot_ids:
            self._balanced_until = now + self._limits.penalty
        self._current, self._since, self._heard = boot_id, now, now
        self._switches += 1
        return Answerer.OTHER

    def _remember(self, boot_id: int, heard: float) -> None:
        self._earlier[boot_id] = heard
        if len(self._earlier) > _REMEMBERED_IDS:
            self._earlier.popitem(last=False)

    def balanced(self, now: float) -> bool:
        """Whether several processes stand behind the origin, so that only shared bases are of use."""
        return now < self._balanced_until

    def switch(self, began: float) -> int | None:
        """Which change of process, counted from 1, an exchange begun at ``began`` fell into; ``None`` if into none."""
        return self._switches if self._switches and began <= self._since else None


class NackBudget:
    """Counts lost bases among the last twenty compact frames; all that fell to one change of process count once."""

    __slots__ = ("_counted", "_limits", "_marks", "_sent")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sent = 0
        self._marks: deque[int] = deque()
        self._counted: int | None = None  # the change of process that has been counted

    def sent(self) -> None:
        """A compact frame goes out."""
        self._sent += 1

    def spent(self, switch: int | None) -> bool:
        """Count a lost base, due to that change of process or to none; whether the budget is used up."""
        if switch is not None:
            if switch == self._counted:
                return False
            self._counted = switch
        while self._marks and self._sent - self._marks[0] >= self._limits.nack_window:
            self._marks.popleft()
        self._marks.append(self._sent)
        if len(self._marks) < self._limits.nacks:
            return False
        self._marks.clear()
        return True
