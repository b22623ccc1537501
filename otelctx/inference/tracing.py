"""Spans, events and measurements of one turn, whoever computes it.

One span ``chat {model}`` with the children ``queue``, ``prefill`` and ``decode``, each made when it is over with the
times at which it began and ended; never a span per token. Nothing is attached to the running context: a turn's span is
passed on explicitly, since a stream may be closed in another task than the one that opened it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue

from otelctx import semconv
from otelctx.errors import (
    ArenaExhausted,
    BreakerOpen,
    BudgetExhausted,
    InvalidRequest,
    OtelctxError,
    Overloaded,
    SessionBusy,
    SessionDeadline,
    SessionNotFound,
    StreamRequired,
    TokenLimitExceeded,
)
from otelctx.inference.turn import Outcome
from otelctx.telemetry import events, sanitize
from otelctx.telemetry.instruments import instruments, tracer

__all__ = ["PROVIDER", "TurnTrace", "outcome_of"]

PROVIDER: Final = "otelctx"
_OPERATION: Final = "chat"

_OUTCOMES: Final[tuple[tuple[tuple[type[BaseException], ...], Outcome], ...]] = (
    ((asyncio.CancelledError, GeneratorExit, KeyboardInterrupt), "cancelled"),
    ((SessionDeadline,), "deadline"),
    ((TokenLimitExceeded, InvalidRequest, SessionNotFound, SessionBusy), "rejected"),
    ((Overloaded, StreamRequired, BreakerOpen), "shed"),
    ((BudgetExhausted, ArenaExhausted), "oom"),
)
_SUCCESSFUL: Final = ("completed", "length")
_DETAILS: Final = (
    semconv.ERROR_TYPE,
    semconv.GEN_AI_FINISH_REASONS,
    semconv.GEN_AI_INPUT_TOKENS,
    semconv.GEN_AI_OUTPUT_TOKENS,
)


def outcome_of(error: BaseException) -> Outcome:
    """How a turn ended that ended with ``error``."""
    return next((outcome for kinds, outcome in _OUTCOMES if isinstance(error, kinds)), "error")


class TurnTrace:
    """Times are nanoseconds since the epoch. ``inside`` is ``context`` with the turn's span as the current one: what is
    measured of the turn is measured in it, so that exemplars lead to the span."""

    __slots__ = ("_ended", "_flags", "_model", "_phase", "_session", "_span", "_started", "context", "inside")

    def __init__(
        self,
        model: str,
        started: int,
        *,
        session: str | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        context: Context | None = None,
    ) -> None:
        """``context`` is the one the turn came with, by default the current one."""
        self.context = context if context is not None else otel_context.get_current()
        self._model = model
        self._session = None if session is None else sanitize.text(session)
        self._started = started
        self._ended = False
        self._flags: dict[str, AttributeValue] = {}
        self._phase: tuple[str, int, dict[str, AttributeValue]] | None = None
        given: dict[str, AttributeValue] = {
            semconv.GEN_AI_OPERATION: _OPERATION,
            semconv.GEN_AI_PROVIDER: PROVIDER,
            semconv.GEN_AI_REQUEST_MODEL: model,
        }
        if self._session is not None:
            given |= {semconv.SESSION_ID_ATTRIBUTE: self._session, semconv.GEN_AI_CONVERSATION_ID: self._session}
        self._span = tracer().start_span(
            f"{_OPERATION} {model}",
            self.context,
            SpanKind.INTERNAL,
            given | dict(attributes or {}),
            start_time=started,
        )
        self.inside = trace.set_span_in_context(self._span, self.context)

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        """More attributes of the turn's span."""
        self._span.set_attributes(dict(attributes))

    def event(self, name: str, attributes: Mapping[str, AttributeValue]) -> None:
        """One of ``semconv.EVENTS``: on the turn's span, on the process's SERVER span, and in its counter."""
        flag = semconv.EVENT_FLAGS.get(name)
        if flag is not None:
            self._flags[flag] = True
        events.emit(name, attributes, span=self._span, context=self.context)

    def enter(self, phase: str | None, at: int, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        """The running phase is over, and ``phase`` begins, with what is known of it. ``None``: no other begins."""
        if self._phase is not None:
            name, started, known = self._phase
            span = tracer().start_span(name, self.inside, SpanKind.INTERNAL, self._flags | known, start_time=started)
            span.end(max(started, at))
        self._phase = None if phase is None else (phase, at, dict(attributes or {}))

    def note(self, attributes: Mapping[str, AttributeValue]) -> None:
        """More attributes of the running phase."""
        if self._phase is not None:
            self._phase[2].update(attributes)

    def end(
        self,
        outcome: Outcome,
        ended: int,
        *,
        error: BaseException | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        details: Mapping[str, Any] | None = None,
        time_to_first_token: float | None = None,
        time_per_token: float | None = None,
    ) -> bool:
        """The turn is over: running phase and span end, durations (in seconds) and the terminal counter are recorded.

        ``details``, messages and answer, go into a log record with what else is known; ``None``: there is none.
        Only the first call counts; returns whether this was it.
        """
        if self._ended:
            return False
        self._ended = True
        kind = _error_type(error) if error is not None and outcome != "cancelled" else None
        final: dict[str, AttributeValue] = {semconv.OUTCOME: outcome, **(attributes or {})}
        if self._session is not None:
            # Set once more: past its limit of attributes the SDK lets the oldest go.
            final[semconv.SESSION_ID_ATTRIBUTE] = self._session
        if kind is not None:
            final[semconv.ERROR_TYPE] = kind
            self._span.set_status(StatusCode.ERROR, _described(error))
        if outcome in _SUCCESSFUL:
            final[semconv.GEN_AI_RESPONSE_MODEL] = self._model
        self._span.set_attributes(final)
        if details is not None:
            events.record(semconv.EVENT_INFERENCE_DETAILS, self._known(final) | dict(details), self.inside)
        self.enter(None, ended)
        self._measure(outcome, kind, (ended - self._started) / 1e9, time_to_first_token, time_per_token)
        self._span.end(max(self._started, ended))
        return True

    def _known(self, final: Mapping[str, AttributeValue]) -> dict[str, Any]:
        """What the record of a turn's details says beside them."""
        known: dict[str, Any] = {
            semconv.GEN_AI_OPERATION: _OPERATION,
            semconv.GEN_AI_PROVIDER: PROVIDER,
            semconv.GEN_AI_REQUEST_MODEL: self._model,
        }
        if self._session is not None:
            known[semconv.GEN_AI_CONVERSATION_ID] = self._session
        return known | {key: final[key] for key in _DETAILS if key in final}

    def _measure(
        self, outcome: Outcome, kind: str | None, duration: float, first: float | None, per_token: float | None
    ) -> None:
        made, context = instruments(), self.inside
        common = {
            semconv.GEN_AI_OPERATION: _OPERATION,
            semconv.GEN_AI_PROVIDER: PROVIDER,
            semconv.GEN_AI_REQUEST_MODEL: self._model,
        }
        made.requests.add(1, {semconv.OUTCOME: outcome, semconv.GEN_AI_REQUEST_MODEL: self._model}, context)
        made.request_duration.record(duration, common if kind is None else common | {semconv.ERROR_TYPE: kind}, context)
        if outcome in _SUCCESSFUL and first is not None:
            made.time_to_first_token.record(first, common, context)
        if outcome in _SUCCESSFUL and per_token is not None:
            made.time_per_output_token.record(per_token, common, context)


def _described(error: BaseException | None) -> str | None:
    """The status' description: our own words, which repeat nothing of a prompt. Of others nobody knows what is in them:
    a template's error quotes the messages."""
    return sanitize.text(str(error), 256) if isinstance(error, OtelctxError) else None


def _error_type(error: BaseException) -> str:
    if isinstance(error, OtelctxError) and error.code is not None:
        return error.code
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
