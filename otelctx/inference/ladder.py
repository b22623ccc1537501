"""The ladder at work in an engine: it is asked as turns come and as time goes by, and says what it did.

Belongs to the event loop. While all is well a turn costs one comparison on its way in, and two entries of a dict.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from opentelemetry.context import Context
from opentelemetry.util.types import AttributeValue

from otelctx import semconv
from otelctx.errors import Overloaded, StreamRequired
from otelctx.inference.pressure import Action, Limits, Move, Pressure, Signal
from otelctx.inference.turn import TurnRequest
from otelctx.telemetry import events

__all__ = ["Applied", "Ladder", "Told"]

_log = logging.getLogger(__name__)

_CAP: Final = 8  # parts of the window
_LONG: Final = 4


@dataclass(frozen=True, slots=True)
class Applied:
    """Something was done to a turn. ``value`` is the signal's; ``cap`` is what the output was limited to, in tokens."""

    action: Action
    signal: Signal
    level: int
    value: float
    cap: int | None = None

    def attributes(self) -> dict[str, AttributeValue]:
        """Of the turn's ``otelctx.degradation`` event."""
        found: dict[str, AttributeValue] = {
            semconv.REASON: "turn",
            semconv.ACTION: self.action,
            semconv.PRESSURE_SIGNAL: self.signal,
            semconv.PRESSURE_LEVEL: self.level,
            semconv.PRESSURE_VALUE: self.value,
        }
        return found if self.cap is None else found | {semconv.TOKENS_LIMIT: self.cap}


class Told(Protocol):
    """Who hears what is done to a turn."""

    def degraded(self, applied: Applied) -> None:
        """It was refused for it."""

    def capped(self, applied: Applied) -> None:
        """Its output may not exceed ``applied.cap`` tokens. Whether that changes anything depends on the room there
        is."""


class Ladder:
    """``window`` in tokens; ``clock`` in monotonic seconds. ``memory`` returns reserved over budget; ``drop_idle`` asks
    for KV that no turn needs to be forgotten."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        *,
        window: int,
        memory: Callable[[], float],
        drop_idle: Callable[[], None],
    ) -> None:
        self._pressure = Pressure(limits, clock())
        self._period = limits.period
        self._clock = clock
        self._window = window
        self._memory = memory
        self._drop_idle = drop_idle
        self._force: dict[Action, Signal] = {}
        self._waiting: dict[object, float] = {}  # admitted turns without a token → since when

    @property
    def level(self) -> int:
        """The pressure level, 0 to 3."""
        return self._pressure.level if self._force else 0

    def signals(self) -> dict[Signal, float]:
        """Both signals as they were last looked at."""
        return dict(self._pressure.values)

    # time

    def tick(self) -> None:
        """Look at the signals if it is time to. To be called every few seconds too, so that it comes down when no turn
        comes."""
        now = self._clock()
        if not self._pressure.due(now):
            return
        moves = self._pressure.look(now, memory=self._memory(), waits=[now - since for since in self._waiting.values()])
        if moves:
            self._force = self._pressure.in_force()
        for move in moves:
            self._tell(move)
        if "drop_idle" in self._force:
            self._drop_idle()

    def waits(self, turn: object, since: float) -> None:
        """``turn`` was admitted; it has been waiting for its first token since ``since``."""
        self._waiting[turn] = since

    def first_token(self, turn: object, at: float) -> None:
        since = self._waiting.pop(turn, None)
        if since is not None:
            self._pressure.first_token(at - since)

    def left(self, turn: object) -> None:
        """``turn`` is over; it may never have had a token. Idempotent."""
        self._waiting.pop(turn, None)

    # turns

    def arrived(self, request: TurnRequest, told: Told) -> None:
        """A turn has come, and nothing was done for it yet. Raises :class:`~otelctx.errors.Overloaded`."""
        self.tick()
        if request.priority < 0 and "shed" in self._force:
            applied = self._applied("shed")
            told.degraded(applied)
            raise Overloaded(
                "this worker is under pressure and serves no requests of low priority now; try again later",
                retry_after=self._period,
                level=self.level,
                signal=applied.signal,
            )

    def prompted(self, request: TurnRequest, added: Callable[[], int], told: Told) -> TurnRequest:
        """The turn is past the guard. Returns it as it is to be served.

        ``added`` counts the tokens that it adds to the window: a short question in a long session is no long request.
        Raises :class:`~otelctx.errors.StreamRequired`.
        """
        if not self._force or request.priority > 0:
            return request
        if "stream" in self._force and not request.stream:
            self._require_stream(added(), told)
        cap = max(1, self._window // _CAP)
        if request.max_tokens is not None and request.max_tokens <= cap:
            return request
        told.capped(self._applied("max_tokens", cap))
        return replace(request, max_tokens=cap)

    def _require_stream(self, tokens: int, told: Told) -> None:
        most = self._window // _LONG
        if tokens > most:
            applied = self._applied("stream")
            told.degraded(applied)
            raise StreamRequired(
                f"this worker is under pressure: a request of {tokens} tokens must be streamed, those of up to {most} "
                'need not be; send "stream": true, or try again later',
                param="stream",
                n_prompt_tokens=tokens,
                max_prompt_tokens=most,
                level=self.level,
                signal=applied.signal,
            )

    def _applied(self, action: Action, cap: int | None = None) -> Applied:
        signal = self._force[action]
        return Applied(action, signal, self.level, self._pressure.values[signal], cap)

    def _tell(self, move: Move) -> None:
        climbs = move.after > move.before
        _log.log(
            logging.WARNING if climbs else logging.INFO,
            "pressure: %s %s from level %d to %d at %.2f: %s %s",
            move.signal,
            "climbs" if climbs else "comes down",
            move.before,
            move.after,
            move.value,
            move.action,
            "begins" if climbs else "ends",
        )
        attributes: dict[str, AttributeValue] = {
            semconv.REASON: "rise" if climbs else "fall",
            semconv.ACTION: move.action,
            semconv.PRESSURE_SIGNAL: move.signal,
            semconv.PRESSURE_LEVEL_BEFORE: move.before,
            semconv.PRESSURE_LEVEL: move.after,
            semconv.PRESSURE_VALUE: move.value,
        }
        # Of the worker, and of no turn: whichever comes just then has nothing to do with it.
        events.emit(semconv.EVENT_DEGRADATION, attributes, context=Context())
