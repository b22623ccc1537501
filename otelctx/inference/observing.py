"""``observe()``: the engine's spans, phases, events and counters around somebody else's own loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import time_ns
from types import TracebackType
from typing import Final

from opentelemetry.util.types import AttributeValue

from otelctx import semconv
from otelctx.context.current import SESSION, USAGE_INPUT, USAGE_OUTPUT, current_scope
from otelctx.errors import TokenLimitExceeded
from otelctx.inference.tracing import TurnTrace, outcome_of
from otelctx.inference.turn import Outcome
from otelctx.telemetry import sanitize

__all__ = ["Observed", "observe"]

# What a loop says at its end → how the turn ended.
_OUTCOMES: Final[Mapping[str, Outcome]] = {
    "stop": "completed",
    "tool_calls": "completed",
    "content_filter": "completed",
    "length": "length",
    "deadline": "deadline",
    "cancelled": "cancelled",
}


class Observed:
    """One turn, as its loop tells it. Use it as a context manager, in sync or async code.

    The turn begins with the block. Until :meth:`prefill` it is in the phase ``queue``, until the first :meth:`token`
    in ``prefill``, then in ``decode``. An exception that leaves the block ends the turn with the outcome that belongs
    to it, and goes on. A block that ends without :meth:`finish` is ``completed``.
    """

    def __init__(
        self,
        model: str,
        *,
        session: str | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        clock: Callable[[], int] = time_ns,
    ) -> None:
        self._model = model
        self._clock = clock
        self._session = session if session is not None else SESSION.get()
        self._attributes = sanitize.attributes(attributes or {})
        self._trace: TurnTrace | None = None
        self._started = 0
        self._prompt = self._cached = self._tokens = 0
        self._first: int | None = None
        self._last = 0
        self._reason: str | None = None

    def __enter__(self) -> Observed:
        self._started = self._clock()
        self._trace = TurnTrace(self._model, self._started, session=self._session, attributes=self._attributes)
        self._trace.enter("queue", self._started)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TokenLimitExceeded):
            self._rejected(error)
        self._end(error)

    def prefill(self, prompt_tokens: int, *, cached_tokens: int = 0) -> None:
        """The prompt is computed from now on; ``cached_tokens`` of its tokens need not be."""
        self._prompt, self._cached = prompt_tokens, cached_tokens
        known = {
            semconv.TOKENS_PREFILLED: prompt_tokens - cached_tokens,
            semconv.GEN_AI_CACHE_READ_TOKENS: cached_tokens,
        }
        self._running().enter("prefill", self._clock(), known)

    def token(self, count: int = 1) -> None:
        """``count`` tokens of the answer are there."""
        now = self._clock()
        if self._first is None:
            self._first = now
            self._running().enter("decode", now)
        self._tokens += count
        self._last = now

    def event(self, name: str, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        """One of ``semconv.EVENTS``, such as ``otelctx.truncation``. Raises ``KeyError`` for another name."""
        self._running().event(name, sanitize.attributes(attributes or {}))

    def finish(self, reason: str = "stop") -> None:
        """How the answer ended: ``stop``, ``length``, ``tool_calls``, ``content_filter``, ``deadline`` or
        ``cancelled``. Raises ``ValueError`` for another word."""
        if reason not in _OUTCOMES:
            raise ValueError(f"a turn ends with one of {', '.join(_OUTCOMES)}, not {reason!r}")
        self._reason = reason

    def _running(self) -> TurnTrace:
        if self._trace is None:
            raise RuntimeError("observe() is a context manager: with observe(model=…) as turn:")
        return self._trace

    def _rejected(self, error: TokenLimitExceeded) -> None:
        known = error.details
        before = known.get("n_prompt_tokens", known.get("n_prompt_tokens_at_least"))
        found = {semconv.TOKENS_BEFORE: before, semconv.TOKENS_LIMIT: known.get("max_context")}
        attributes: dict[str, AttributeValue] = {key: value for key, value in found.items() if value is not None}
        self.event(semconv.EVENT_OVERFLOW, attributes | {semconv.REASON: "prompt", semconv.ACTION: "reject"})

    def _end(self, error: BaseException | None) -> None:
        now = self._clock()
        if self._tokens:
            self._running().note({semconv.GEN_AI_OUTPUT_TOKENS: self._tokens})
        reason = self._reason or "stop"
        outcome = _OUTCOMES[reason] if error is None else outcome_of(error)
        attributes: dict[str, AttributeValue] = {
            semconv.GEN_AI_FINISH_REASONS: [reason if outcome in ("completed", "length") else "error"]
        }
        if self._prompt:
            attributes |= {
                semconv.GEN_AI_INPUT_TOKENS: self._prompt,
                semconv.GEN_AI_OUTPUT_TOKENS: self._tokens,
                semconv.GEN_AI_CACHE_READ_TOKENS: self._cached,
            }
            if (scope := current_scope(self._running().context)) is not None:
                scope.record(USAGE_INPUT.spec, self._prompt)
                scope.record(USAGE_OUTPUT.spec, self._tokens)
        first = None if self._first is None else (self._first - self._started) / 1e9
        several = self._first is not None and self._tokens > 1
        per_token = (self._last - (self._first or 0)) / 1e9 / (self._tokens - 1) if several else None
        self._running().end(
            outcome, now, error=error, attributes=attributes, time_to_first_token=first, time_per_token=per_token
        )


def observe(
    model: str, *, session: str | None = None, attributes: Mapping[str, AttributeValue] | None = None
) -> Observed:
    """Trace one turn of a loop of one's own::

        with observe(model="mine") as turn:
            ids = guard.admit(messages, max_tokens=256)
            turn.prefill(len(ids))
            for token in generate(ids):
                turn.token()
            turn.finish("stop")

    ``session`` defaults to the ``session.id`` of the current context; ``attributes`` go on the turn's span.
    """
    return Observed(model, session=session, attributes=attributes)
