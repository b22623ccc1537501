"""What a sender remembers of one origin beside its bases: the processes behind it, how old they are, how often they
lost a base, and which of its paths ack.

All of it is a guess about somebody else's memory, so all of it may be wrong: a base may be gone, a process may have
been replaced. The receiver has the last word (412), and what is kept here only decides how often it must speak it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum, auto
from typing import Final

from otelctx.delta.limits import Limits

__all__ = ["Answerer", "BootIds", "NackBudget", "Paths", "TableRevisions"]

_REMEMBERED_IDS: Final = 8  # earlier processes of one origin
_PATH_BYTES: Final = 130  # measured on CPython 3.11 (64 bit): one remembered path, without its length


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


class TableRevisions:
    """Which revision of the static table to write: the first until somebody has acked, then the lowest that an ack of
    the last ten minutes has named, and never a newer one than our own. Several ages may stand behind one origin.
    """

    __slots__ = ("_limits", "_own", "_seen")

    def __init__(self, limits: Limits, own: int) -> None:
        self._limits = limits
        self._own = own
        self._seen: dict[int, float] = {}  # revision → when last named; at most ``own`` of them

    def seen(self, revision: int, now: float) -> None:
        """An ack has named ``revision``."""
        self._seen[max(1, min(revision, self._own))] = now

    def current(self, now: float) -> int:
        """The revision to write at ``now``."""
        if self._own == 1:
            return 1
        return min((r for r, at in self._seen.items() if now - at < self._limits.table_window), default=1)


class Paths:
    """How often in a row each path has acked, up to ``limits.acks_until_aware``: ``limits.paths`` of them and
    ``limits.path_bytes``, the least recently used given up first. A path may have ids in it, and be long."""

    __slots__ = ("_acks", "_limits", "bytes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._acks: OrderedDict[str, int] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._acks)

    def acks(self, path: str) -> int:
        """0 of a path that is not known. It is now the one used last."""
        if path not in self._acks:
            return 0
        self._acks.move_to_end(path)
        return self._acks[path]

    def known(self, path: str) -> bool:
        """Whether it has acked as often as is asked for. This is no use of it."""
        return self._acks.get(path, 0) >= self._limits.acks_until_aware

    def acked(self, path: str) -> None:
        """An ack came from ``path``."""
        before = self.acks(path)
        self._acks[path] = min(before + 1, self._limits.acks_until_aware)
        if before == 0:
            self.bytes += _PATH_BYTES + len(path)
            while len(self._acks) > self._limits.paths or self.bytes > self._limits.path_bytes:
                self.silent(next(iter(self._acks)))

    def silent(self, path: str) -> None:
        """``path`` has answered without an ack, or is given up: it counts from nothing again."""
        if self._acks.pop(path, None) is not None:
            self.bytes -= _PATH_BYTES + len(path)
