"""Which turn feeds how many tokens in the next step. Pure.

Every decoding turn feeds one token in each step. Beside them at most C prompt tokens are prefilled: C is small while
anything decodes, because a prefill of 32 tokens beside eight decoding rows costs them half a step and one of 512
several steps, and large when nothing waits for its next token. Prefills are served first come first served,
round-robin by chunk. Turns wait in a bounded queue until a row is free.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, fields

from otelctx.errors import ConfigError, Overloaded

__all__ = ["Limits", "Scheduler", "Work"]


@dataclass(frozen=True, slots=True)
class Limits:
    """``rows`` turns run at once and ``queue`` wait; ``chunk`` and ``idle_chunk`` are prompt tokens a step, with and
    without decoding turns."""

    rows: int = 8
    queue: int = 256
    chunk: int = 64
    idle_chunk: int = 512

    def __post_init__(self) -> None:
        for limit in fields(self):
            value, least = getattr(self, limit.name), 0 if limit.name == "queue" else 1
            if value < least:
                raise ConfigError(f"scheduler: {limit.name} must be at least {least}, not {value}")


@dataclass(frozen=True, slots=True)
class Work:
    """Feed ``count`` tokens of turn ``turn``: prompt tokens from ``start`` on, or its last token if ``decode``."""

    turn: int
    start: int
    count: int
    decode: bool


@dataclass(slots=True)
class _Prefill:
    start: int
    end: int


class Scheduler:
    """Turns are known by number. ``submit`` → ``admit`` when a row is free → ``start`` → ``step``, ``fed`` … →
    ``finish``; ``finish`` also cancels, in any state.

    A turn has its row from ``admit`` to ``finish``. Between ``step`` and ``fed`` nothing has happened yet: a step that
    failed is asked for again, and what was finished or started meanwhile is left out of ``fed``.
    """

    __slots__ = ("_admitted", "_decoding", "_limits", "_prefilling", "_waiting")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: deque[int] = deque()
        self._admitted: set[int] = set()  # have a row and have not started yet
        self._prefilling: OrderedDict[int, _Prefill] = OrderedDict()
        self._decoding: OrderedDict[int, None] = OrderedDict()

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Turns that have a row."""
        return len(self._admitted) + len(self._prefilling) + len(self._decoding)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self.running

    def submit(self, turn: int) -> None:
        """Queue a turn. Raises :class:`~otelctx.errors.Overloaded` when the queue is full."""
        if len(self._waiting) >= self._limits.queue:
            raise Overloaded(
                f"{len(self._waiting)} requests are waiting already; try again later", retry_after=self._retry_after()
            )
        self._waiting.append(turn)

    def admit(self) -> int | None:
        """The turn that has waited longest, if a row is free; the caller then says by :meth:`start` what it feeds."""
        if not self._waiting or self.running >= self._limits.rows:
            return None
        turn = self._waiting.popleft()
        self._admitted.add(turn)
        return turn

    def start(self, turn: int, start: int, end: int) -> None:
        """Prefill prompt positions ``[start, end)``, at least one, of a turn that has a row; also once more of one that
        has started already, if its KV was lost."""
        if not 0 <= start < end:
            raise ValueError(f"nothing to prefill in [{start}, {end})")
        if turn not in self._admitted and turn not in self._prefilling and turn not in self._decoding:
            raise ValueError(f"turn {turn} has no row")
        self._admitted.discard(turn)
        self._decoding.pop(turn, None)
        self._prefilling[turn] = _Prefill(start, end)

    def step(self) -> list[Work]:
        """The work of the next step: all decoding turns, then prefill chunks within the step's share."""
        work = [Work(turn, 0, 1, decode=True) for turn in self._decoding]
        room = self._limits.chunk if work else self._limits.idle_chunk
        for turn, prefill in self._prefilling.items():
            if room <= 0:
                break
            count = min(room, prefill.end - prefill.start)
            work.append(Work(turn, prefill.start, count, decode=False))
            room -= count
        return work

    def fed(self, work: list[Work]) -> list[int]:
        """The step was computed. Returns the turns that have a new token to choose: the decoding ones, and those whose
        prompt is now complete. Chunks of unfinished prompts go to the end of the round."""
        ready: list[int] = []
        for item in work:
            prefill = self._prefilling.get(item.turn)
            if item.decode and item.turn in self._decoding:
                ready.append(item.turn)
            elif not item.decode and prefill is not None and prefill.start == item.start:
                prefill.start += item.count
                if prefill.start == prefill.end:
                    del self._prefilling[item.turn]
                    self._decoding[item.turn] = None
                    ready.append(item.turn)
                else:
                    self._prefilling.move_to_end(item.turn)
        return ready

    def finish(self, turn: int) -> None:
        """Forget a turn, in whichever state it is. Unknown turns are left alone: a cancel may come twice."""
        self._admitted.discard(turn)
        self._prefilling.pop(turn, None)
        self._decoding.pop(turn, None)
        if turn in self._waiting:
            self._waiting.remove(turn)

    def _retry_after(self) -> float:
        # A guess that grows with the queue; clients only need to be kept from coming back at once.
        return min(30.0, 1.0 + len(self._waiting) / self._limits.rows)
