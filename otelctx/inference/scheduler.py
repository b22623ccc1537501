"""Which turn feeds how many tokens in the next step. Pure.

Every decoding turn feeds one token in each step, so turns that decode together get the same number of tokens. Beside
them prompts are prefilled, as many tokens as a step's budget buys. It is small while anything decodes, because a
prefill of 32 tokens beside eight decoding rows costs them half a step and one of 512 several steps, and large when
nothing waits for its next token. Prefills are served round-robin by chunk.

Turns wait in a bounded queue until a row is free, and priority is about that queue only: a higher one goes first, equal
ones go first come first served, and a turn that runs is never stopped for another, since its KV would be computed
twice. So that nobody waits for ever, the turn that has waited longest is next once ``patience`` others have overtaken
it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Final

from otelctx.errors import ConfigError, Overloaded

__all__ = ["Limits", "Scheduler", "Work"]

# Seconds that a client is asked to stay away: at least, and at most.
_SOON: Final = 1.0
_LATE: Final = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """``rows`` turns run at once and ``queue`` wait, each overtaken by ``patience`` others at most while it is the
    oldest.

    ``chunk`` is what a step may spend on prompts while others decode, in tokens at the beginning of a prompt: attention
    goes over all that stands before a token, so that behind ``reach`` tokens it costs twice as much as there, and
    behind ``n`` tokens ``1 + n / reach`` times. ``idle_chunk`` is in tokens wherever they stand, since then nobody
    waits.
    """

    rows: int = 8
    queue: int = 256
    chunk: int = 32
    idle_chunk: int = 512
    reach: int = 2400
    patience: int = 32

    def __post_init__(self) -> None:
        for limit in fields(self):
            value, least = getattr(self, limit.name), 0 if limit.name in ("queue", "patience") else 1
            if value < least:
                raise ConfigError(f"scheduler: {limit.name} must be at least {least}, not {value}")

    def cost(self, start: int, count: int) -> int:
        """What ``count`` prompt tokens behind ``start`` others cost, rounded down."""
        return count * (self.reach + start) // self.reach

    def affordable(self, room: int, start: int) -> int:
        """How many tokens behind ``start`` others cost no more than ``room``."""
        return ((room + 1) * self.reach - 1) // (self.reach + start)


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

    __slots__ = ("_admitted", "_decoding", "_limits", "_overtaken", "_prefilling", "_typical", "_waiting")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: dict[int, int] = {}  # turn → priority, in order of arrival
        self._overtaken = 0  # by how many, the turn that has waited longest
        self._admitted: set[int] = set()  # have a row and have not started yet
        self._prefilling: OrderedDict[int, _Prefill] = OrderedDict()
        self._decoding: OrderedDict[int, None] = OrderedDict()
        self._typical: float | None = None  # seconds that a turn has its row

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

    def submit(self, turn: int, priority: int = 0) -> None:
        """Queue a turn. Raises :class:`~otelctx.errors.Overloaded` when the queue is full, whatever the priority: who
        waits has been told that there is room, and is not turned away for who comes later."""
        if len(self._waiting) >= self._limits.queue:
            raise Overloaded(
                f"{len(self._waiting)} requests are waiting already; try again later", retry_after=self._retry_after()
            )
        self._waiting[turn] = priority

    def admit(self) -> int | None:
        """The turn that is next, if a row is free; the caller then says by :meth:`start` what it feeds."""
        if not self._waiting or self.running >= self._limits.rows:
            return None
        oldest = next(iter(self._waiting))
        turn = oldest if self._overtaken >= self._limits.patience else max(self._waiting, key=self._waiting.__getitem__)
        self._overtaken = 0 if turn == oldest else self._overtaken + 1
        del self._waiting[turn]
        self._admitted.add(turn)
        return turn

    def start(self, turn: int, start: int, end: int) -> None:
        """Prefill prompt positions ``[start, end)``, at least one, of a turn that has a row; also once more of one that
        has started already, if its KV was lost or its window has slid."""
        if not 0 <= start < end:
            raise ValueError(f"nothing to prefill in [{start}, {end})")
        if turn not in self._admitted and turn not in self._prefilling and turn not in self._decoding:
            raise ValueError(f"turn {turn} has no row")
        self._admitted.discard(turn)
        self._decoding.pop(turn, None)
        self._prefilling[turn] = _Prefill(start, end)

    def step(self) -> list[Work]:
        """The work of the next step: all decoding turns, then prefill chunks within the step's budget: the first one
        has a token in any case, however far down its prompt it stands, and only the last one leaves some of its prompt,
        so that nobody spends a turn of the round on scraps of the budget."""
        work = [Work(turn, 0, 1, decode=True) for turn in self._decoding]
        limits, busy = self._limits, bool(work)
        room = limits.chunk if busy else limits.idle_chunk
        least = 1
        for turn, prefill in self._prefilling.items():
            most = limits.affordable(room, prefill.start) if busy else room
            count = min(max(most, least), prefill.end - prefill.start)
            if count <= 0:
                break
            work.append(Work(turn, prefill.start, count, decode=False))
            if prefill.start + count < prefill.end:
                break
            room = max(0, room - (limits.cost(prefill.start, count) if busy else count))
            least = 0
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

    def finish(self, turn: int, took: float | None = None) -> None:
        """Forget a turn, in whichever state it is. Unknown turns are left alone: a cancel may come twice. ``took``:
        seconds that it had its row, from which it is estimated when another one will be free."""
        if took is not None:
            self._typical = took if self._typical is None else self._typical + (took - self._typical) / 8
        self._admitted.discard(turn)
        self._prefilling.pop(turn, None)
        self._decoding.pop(turn, None)
        if turn in self._waiting:
            if turn == next(iter(self._waiting)):
                self._overtaken = 0
            del self._waiting[turn]

    def _retry_after(self) -> float:
        """When the queue will have moved on: ``rows`` turns at a time, each for as long as turns took before. Until one
        was seen, a second."""
        rounds = len(self._waiting) / self._limits.rows
        return min(_LATE, _SOON + rounds * (self._typical if self._typical is not None else 1.0))
