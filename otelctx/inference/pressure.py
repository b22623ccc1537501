"""How far a worker is from its limits, and what it does about it: a ladder of four levels. Pure.

Two signals climb it, each by itself: *memory*, the reserved share of the budget, and *latency*, the 99th percentile of
the time to first token over its target. The worker's level is the higher of the two. A signal is looked at once a
period and moves by one level at most; it climbs at one threshold and comes down at a lower one.

| signal  | enter 1, 2, 3   | exit            | level 1        | level 2                      | level 3                |
|---------|-----------------|-----------------|----------------|------------------------------|------------------------|
| memory  | .80, .90, .97   | .70, .80, .90   | cap max_tokens | drop idle KV                 | shed low priority      |
| latency | 1, 1.5, 2       | .8, 1.2, 1.6    | cap max_tokens | long requests must be streamed | shed low priority    |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from otelctx.errors import ConfigError
from otelctx.inference.quantile import Tail

__all__ = ["ACTIONS", "SIGNALS", "Action", "Limits", "Move", "Pressure", "Signal", "Threshold"]

Signal = Literal["memory", "latency"]
Action = Literal["max_tokens", "drop_idle", "stream", "shed"]

SIGNALS: Final[tuple[Signal, ...]] = ("memory", "latency")
# What begins at level 1, 2 and 3 of a signal, and goes on above it.
ACTIONS: Final[Mapping[Signal, tuple[Action, Action, Action]]] = {
    "memory": ("max_tokens", "drop_idle", "shed"),
    "latency": ("max_tokens", "stream", "shed"),
}


class Threshold(NamedTuple):
    """A level is entered at ``enter`` or more, and left below ``exit``."""

    enter: float
    exit: float


Steps = tuple[Threshold, Threshold, Threshold]


@dataclass(frozen=True, slots=True)
class Limits:
    """``ttft``: the target for the time to first token, in seconds. ``period`` and ``dwell`` in seconds: a signal is
    looked at once a period, and stays at a level for ``dwell`` at least. ``samples``: first tokens that it takes
    to climb. ``memory`` and ``latency``: thresholds of levels 1 to 3, both columns growing.

    The default target is the time after which a reader's attention is known to be elsewhere. Raises
    :class:`~otelctx.errors.ConfigError`.
    """

    ttft: float = 10.0
    period: float = 10.0
    dwell: float = 10.0
    samples: int = 20
    memory: Steps = (Threshold(0.80, 0.70), Threshold(0.90, 0.80), Threshold(0.97, 0.90))
    latency: Steps = (Threshold(1.0, 0.8), Threshold(1.5, 1.2), Threshold(2.0, 1.6))

    def __post_init__(self) -> None:
        for name in ("ttft", "period", "dwell"):
            value = getattr(self, name)
            if not (0 < value < math.inf or (name == "dwell" and value == 0)):
                raise ConfigError(f"pressure: {name} must be a number of seconds above 0, not {value!r}")
        if self.samples < 1:
            raise ConfigError(f"pressure: samples must be at least 1, not {self.samples!r}")
        for signal in SIGNALS:
            _check(signal, self.steps(signal))

    def steps(self, signal: Signal) -> Steps:
        return self.memory if signal == "memory" else self.latency


def _check(signal: Signal, steps: Steps) -> None:
    enters, exits = [step.enter for step in steps], [step.exit for step in steps]
    growing = all(a < b for column in (enters, exits) for a, b in pairwise(column))
    if len(steps) != 3 or not growing or not all(0 < step.exit < step.enter for step in steps):
        raise ConfigError(
            f"pressure: {signal} needs three thresholds that grow, each with 0 < exit < enter, not {steps!r}"
        )


@dataclass(frozen=True, slots=True)
class Move:
    """``signal`` went from level ``before`` to ``after``, because it stood at ``value``. ``action`` began with it, or
    has ended if it came down."""

    signal: Signal
    before: int
    after: int
    value: float

    @property
    def action(self) -> Action:
        return ACTIONS[self.signal][max(self.before, self.after) - 1]


class Pressure:
    """The ladder. Times are seconds of one monotonic clock, passed in.

    The latency is that of one period. It climbs once ``samples`` first tokens came in successive periods that all stood
    at the threshold: in one of a busy worker, in several of one so slow that it gives fewer. A few are enough to come
    down, since a worker that has little to do, and does it in time, is under no pressure; a period without any counts
    as 0.
    """

    __slots__ = ("_began", "_evidence", "_limits", "_moved", "_tail", "levels", "values")

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._began = now
        self._moved: dict[Signal, float] = dict.fromkeys(SIGNALS, -math.inf)
        self._tail = Tail(bound for step in limits.latency for bound in step)
        self._evidence = 0  # first tokens of successive periods that stood at the next level's threshold
        self.levels: dict[Signal, int] = dict.fromkeys(SIGNALS, 0)
        self.values: dict[Signal, float] = dict.fromkeys(SIGNALS, 0.0)

    @property
    def level(self) -> int:
        """0 to 3."""
        return max(self.levels.values())

    def first_token(self, seconds: float) -> None:
        """A turn that was admitted had its first token after ``seconds``."""
        self._tail.add(seconds / self._limits.ttft)

    def due(self, now: float) -> bool:
        """Whether the period is over."""
        return now >= self._began + self._limits.period

    def look(self, now: float, *, memory: float, waits: Iterable[float] = ()) -> tuple[Move, ...]:
        """End the period if it is over, and say what moved: nothing, or each signal by one level.

        ``memory``: reserved over budget. ``waits``: for how many seconds each admitted turn has been waiting for its
        first token. One that waits for too long already counts as if it came now: else a worker that is so slow that
        nobody waits for it would look idle.
        """
        if not self.due(now):
            return ()
        self._began = now
        latency, enough = self._latency(waits)
        moves = (self._move("memory", memory, True, now), self._move("latency", latency, enough, now))
        return tuple(move for move in moves if move is not None)

    def in_force(self) -> dict[Action, Signal]:
        """What is done at this moment, each with the signal that asks for it; the one on the higher level if both."""
        found: dict[Action, Signal] = {}
        for signal in sorted(SIGNALS, key=self.levels.__getitem__):
            found |= dict.fromkeys(ACTIONS[signal][: self.levels[signal]], signal)
        return found

    def _latency(self, waits: Iterable[float]) -> tuple[float, bool]:
        """The signal, and whether it stands on enough to climb."""
        limits, steps, level = self._limits, self._limits.latency, self.levels["latency"]
        slow = [ratio for wait in waits if (ratio := wait / limits.ttft) >= steps[0].exit]
        count, value = self._tail.count + len(slow), self._tail.p99(slow)
        self._tail.clear()
        high = level < len(steps) and value >= steps[level].enter
        self._evidence = self._evidence + count if high else 0
        return value, self._evidence >= limits.samples

    def _move(self, signal: Signal, value: float, may_climb: bool, now: float) -> Move | None:
        self.values[signal] = value
        steps, before = self._limits.steps(signal), self.levels[signal]
        if before < len(steps) and may_climb and value >= steps[before].enter:
            after = before + 1
        elif before > 0 and value < steps[before - 1].exit:
            after = before - 1
        else:
            return None
        if now < self._moved[signal] + self._limits.dwell:
            return None
        self._moved[signal] = now
        self.levels[signal] = after
        if signal == "latency":
            self._evidence = 0
        return Move(signal, before, after, value)
