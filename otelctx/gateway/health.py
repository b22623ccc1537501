"""Whether an upstream may get requests: a table of phases and signals. Pure: time is passed in, in seconds.

phase      signal   then
UP         OK       UP, and the failures before it are forgotten
           FAILED   UP until the third in a row, then EJECTED
           GONE     EJECTED
EJECTED    OK       UP once its time is over, else EJECTED
           others   EJECTED, for no longer than before
TRIAL      OK       UP
           others   EJECTED, for twice as long
EJECTED    (time)   TRIAL: one request goes there, the others do not
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["Health", "Phase", "Rules", "Signal"]


class Phase(Enum):
    UP = auto()
    EJECTED = auto()
    TRIAL = auto()


class Signal(Enum):
    """``GONE``: nothing listens there, or it says itself that it is not ready."""

    OK = auto()
    FAILED = auto()
    GONE = auto()


@dataclass(frozen=True, slots=True)
class Rules:
    """``failures`` in a row that eject; seconds of the first ejection, of the longest, and for a trial to end."""

    failures: int = 3
    first: float = 1.0
    longest: float = 30.0
    trial: float = 10.0


class Health:
    """One upstream's. ``phase`` starts as UP: who has said nothing has not failed."""

    __slots__ = ("_ejections", "_failures", "_rules", "_until", "phase")

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        self._failures = 0
        self._ejections = 0  # since it was last UP for good
        self._until = 0.0
        self.phase = Phase.UP

    def admits(self, now: float) -> bool:
        """Whether a request may go there now. Whoever then sends one says so by :meth:`chosen`."""
        return self.phase is Phase.UP or now >= self._until

    def chosen(self, now: float) -> None:
        """A request goes there. In an ejected one it is the trial; one of which nothing is heard gives way to
        another."""
        if self.phase is not Phase.UP:
            self.phase = Phase.TRIAL
            self._until = now + self._rules.trial

    def see(self, signal: Signal, now: float, spread: float = 0.0) -> bool:
        """Take ``signal`` into account; ``True`` if the upstream has been ejected by it.

        ``spread`` in [0, 1) makes ejections differ by up to a quarter, so that not everybody comes back at once.
        """
        if signal is Signal.OK:
            self._ok(now)
            return False
        if self.phase is Phase.EJECTED:
            return False
        self._failures += 1
        if self.phase is Phase.UP and signal is Signal.FAILED and self._failures < self._rules.failures:
            return False
        backoff = min(self._rules.longest, self._rules.first * 2.0 ** min(self._ejections, 16))
        self.phase = Phase.EJECTED
        self._ejections += 1
        self._until = now + backoff * (1 + spread / 4)
        return True

    def _ok(self, now: float) -> None:
        if self.phase is Phase.EJECTED and now < self._until:
            return
        if self.phase is Phase.UP:
            self._ejections = 0
        self.phase = Phase.UP
        self._failures = 0
