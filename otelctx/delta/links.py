"""What a sender remembers of one origin: the bases it holds, the processes behind it, and how often it lost a base."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from otelctx.context.state import State
from otelctx.delta.bases import memory
from otelctx.delta.limits import Limits
from otelctx.delta.messages import Held

__all__ = ["BootIds", "HeldBases", "NackBudget"]


@dataclass(slots=True)
class _HeldBase:
    state: State
    held: Held
    expires: float
    cost: int


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
        bases = self._sessions.get(state.session_id or "")
        if not bases:
            return None
        found = None
        for root in list(bases):
            base = bases[root]
            if base.held is Held.PROCESS and now >= base.expires:
                self._forget(bases, root)
            elif not shared_only or base.held is Held.SHARED:
                found = base.state
                if root == state.root:
                    break
        return found

    def drop(self, session: str | None) -> None:
        bases = self._sessions.pop(session or "", OrderedDict())
        for root in list(bases):
            self._forget(bases, root)

    def _forget(self, bases: OrderedDict[bytes, _HeldBase], root: bytes) -> None:
        self.bytes -= bases.pop(root).cost

    def drop_process(self) -> None:
        """Another process answered: what only the first one held is of no use."""
        for session in list(self._sessions):
            bases = self._sessions[session]
            for root in [r for r, b in bases.items() if b.held is Held.PROCESS]:
                self._forget(bases, root)
            if not bases:
                del self._sessions[session]


class BootIds:
    """Tells a restart from a balancer by the boot ids of the acks.

    A restart replaces one id by another. A balancer returns to an id that an exchange begun after its successor's ack
    gets again, or shows three ids within a minute: from then on only shared bases are used, for ten minutes.
    """

    __slots__ = ("_balanced_until", "_current", "_limits", "_recent", "_since")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._current: int | None = None
        self._since = float("-inf")  # when the current id was first acked
        self._recent: deque[tuple[float, int]] = deque()
        self._balanced_until = float("-inf")

    def seen(self, boot_id: int, *, began: float, now: float) -> bool:
        """Note the id of an ack; whether it is another process than the last one."""
        if boot_id == self._current:
            return False
        switched = self._current is not None
        while self._recent and now - self._recent[0][0] > self._limits.boot_window:
            self._recent.popleft()
        returned = began > self._since and any(known == boot_id for _, known in self._recent)
        self._recent.append((now, boot_id))
        if returned or len({known for _, known in self._recent}) >= self._limits.boot_ids:
            self._balanced_until = now + self._limits.penalty
        self._current, self._since = boot_id, now
        return switched

    def balanced(self, now: float) -> bool:
        return now < self._balanced_until

    def switched_recently(self, began: float) -> bool:
        """Whether the exchange that began then was under way when the process changed."""
        return len(self._recent) > 1 and began <= self._since


class NackBudget:
    """Counts NACKs among the last twenty compact frames; those that follow one restart count once."""

    __slots__ = ("_limits", "_marks", "_sent", "_switch_counted")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sent = 0
        self._marks: deque[int] = deque()
        self._switch_counted = False

    def sent(self) -> None:
        self._sent += 1

    def spent(self, *, after_switch: bool) -> bool:
        """Count one; whether the budget is used up."""
        if after_switch and self._switch_counted:
            return False
        self._switch_counted = after_switch
        while self._marks and self._sent - self._marks[0] >= self._limits.nack_window:
            self._marks.popleft()
        self._marks.append(self._sent)
        if len(self._marks) < self._limits.nacks:
            return False
        self._marks.clear()
        return True
