"""What is told of a turn: its spans and events, the caller's up values and window, and the result at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import time_ns
from typing import Final

from opentelemetry.util.types import AttributeValue

from otelctx import semconv
from otelctx.context.current import OVERFLOWED, TRUNCATED, TURN, USAGE_INPUT, USAGE_OUTPUT
from otelctx.context.keys import INT_MAX, INT_MIN, KeySpec
from otelctx.context.scope import Scope
from otelctx.context.state import Window
from otelctx.errors import OtelctxError, TokenLimitExceeded
from otelctx.inference.content import cut_inside
from otelctx.inference.job import Admission, Ended
from otelctx.inference.ladder import Applied, Ladder
from otelctx.inference.overflow import Mode, Truncate
from otelctx.inference.reuse import Miss
from otelctx.inference.tracing import TurnTrace, outcome_of
from otelctx.inference.transcript import Transcript
from otelctx.inference.turn import Outcome, TurnRequest, TurnResult, Usage
from otelctx.sessions.record import SessionRecord
from otelctx.settings import CaptureContent
from otelctx.telemetry import sanitize
from otelctx.telemetry.instruments import instruments

__all__ = ["Times", "TurnReport"]

_NS: Final = 1_000_000_000
_STOPS: Final = 16  # sequences on a span, which is no place for more
_STOP: Final = 128  # characters of each
_OUTCOMES: Final[Mapping[str | None, Outcome]] = {"deadline": "deadline", "memory": "oom", None: "completed"}


class Times:
    """Moments of one turn: in seconds of the engine's clock, and as nanoseconds since the epoch."""

    __slots__ = ("_clock", "_epoch", "started")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.started = clock()
        self._epoch = time_ns() - int(self.started * _NS)

    def now(self) -> float:
        return self._clock()

    def ns(self, at: float) -> int:
        return self._epoch + int(at * _NS)


class TurnReport:
    """One turn, from its arrival to its one outcome. Belongs to the event loop."""

    def __init__(
        self,
        request: TurnRequest,
        *,
        model: str,
        window: int,
        mode: Mode,
        scope: Scope | None,
        times: Times,
        ladder: Ladder | None = None,
        capture_content: CaptureContent = "NO_CONTENT",
    ) -> None:
        """``window`` in tokens; ``mode`` is what happens when it is full; ``scope`` is the caller's.
        ``ladder`` says under which pressure, and is told of first tokens. ``capture_content`` says where messages
        and answer go.
        """
        self.times = times
        self.window = Window(0, window)
        self._request = request
        self._scope = scope
        self._mode = mode
        self._ladder = ladder
        self._since = times.started
        self._capped: Applied | None = None
        self._trace = TurnTrace(model, times.ns(times.started), session=request.session, attributes=_asked(request))
        self._trace.enter("queue", times.ns(times.started))
        self._record: SessionRecord | None = None
        self._prompt = self._dropped = self._evicted = self._reused = self._recomputed = self._turn = 0
        self._started = False
        self._first: float | None = None
        self._last = 0.0
        self._transcript = Transcript(request, capture_content)
        if self._transcript.on_span:
            if request.stop:  # words of the request, as its messages are
                stops = [sanitize.text(stop, _STOP) for stop in request.stop[:_STOPS]]
                self._trace.set({semconv.GEN_AI_STOP_SEQUENCES: stops})
            self._trace.set(self._transcript.as_attributes(self._transcript.asked()))

    # what becomes known, in this order

    def leased(self, record: SessionRecord) -> None:
        """The turn has its session; nobody else changes it now."""
        self._record = record
        self._turn = record.turns + 1
        # A session's turns wait for each other: how long that takes is the client's doing and no pressure.
        self._since = self.times.now()

    def neutralised(self, count: int) -> None:
        """``count`` special tokens that messages spelled out were made text."""
        if count:
            self._trace.set({semconv.SPECIAL_TOKENS: count})

    def admitted(self, admission: Admission, version: int) -> None:
        """``version`` is what to report for a turn without a session, whose window has none."""
        verdict, record = admission.verdict, self._record
        self._prompt, self._evicted = verdict.prompt, admission.evicted
        if self._ladder is not None:
            self._ladder.waits(self, self._since)
        self._cap(verdict.output)
        if isinstance(verdict, Truncate):
            self._truncated(verdict, admission)
        generation, version = (0, version) if record is None else (record.generation, admission.version)
        self._show(Window(self._prompt, self.window.limit, admission.total_evicted, self._level, generation, version))

    def started(self, at: float, row: int, reused: int, miss: Miss | None) -> None:
        self._reused, self._started = reused, True
        attributes: dict[str, AttributeValue] = {
            semconv.ROW: row,
            semconv.TOKENS_PREFILLED: self._prompt - reused,
            semconv.GEN_AI_CACHE_READ_TOKENS: reused,
        }
        if miss is not None:
            attributes[semconv.REUSE_MISS] = miss
        self._trace.enter("prefill", self.times.ns(at), attributes)

    def first_token(self, at: float) -> None:
        self._first = at
        if self._ladder is not None:
            self._ladder.first_token(self, at)
        self._trace.enter("decode", self.times.ns(at))

    def text(self, text: str) -> None:
        self._transcript.add(text)

    def result(self, ended: Ended) -> TurnResult:
        """What the turn's result is, if its reader takes it."""
        before = self.window
        self._last = ended.at
        evicted = before.evicted + ended.evicted
        self.window = Window(ended.used, before.limit, evicted, self._level, before.generation, before.version + 1)
        if ended.evicted:
            self._slid(ended)
        if ended.limit == "context":
            self._overflow(ended.used, ended.used, "output", "length")
        return TurnResult(
            finish_reason=ended.reason,
            outcome=_OUTCOMES.get(ended.limit, "length"),
            usage=self.usage(ended.sampled),
            limit=ended.limit,
            cut=ended.cut or (cut_inside(self._transcript.answer) if ended.limit is not None else None),
            window=self.window,
            time_to_first_token=None if self._first is None else self._first - self.times.started,
            session=self._request.session,
            degraded=None if self._capped is None else self._capped.action,
        )

    def usage(self, sampled: int = 0) -> Usage:
        return Usage(self._prompt, sampled, self._reused, self._dropped)

    # what pressure did to it

    def degraded(self, applied: Applied) -> None:
        self._trace.event(semconv.EVENT_DEGRADATION, applied.attributes())

    def capped(self, applied: Applied) -> None:
        self._capped = applied

    def _cap(self, output: int) -> None:
        """``output`` tokens may follow: where the window has less room than the cap, that is what limits it."""
        applied = self._capped
        if applied is not None and applied.cap is not None and output >= applied.cap:
            self.degraded(applied)
        else:
            self._capped = None

    @property
    def _level(self) -> int:
        return 0 if self._ladder is None else self._ladder.level

    # the one outcome

    def refused(self, error: BaseException) -> None:
        """The turn was not admitted."""
        if isinstance(error, TokenLimitExceeded):
            known = error.details
            tokens = known.get("n_prompt_tokens", known.get("n_prompt_tokens_at_least", 0))
            self._overflow(tokens, tokens, "prompt", "reject")
        self._end(outcome_of(error), 0, error=error)

    def answered(self, result: TurnResult) -> None:
        """The reader takes the last of it."""
        tokens = result.usage.completion_tokens
        per_token = None
        if self._first is not None and tokens > 1:
            per_token = (self._last - self._first) / (tokens - 1)
        self._show(self.window)
        if self._request.session is not None:
            self._record_up(TURN.spec, self._turn)
        instruments().window_tokens.record(self.window.used, {semconv.WINDOW_MODE: self._mode}, self._trace.inside)
        found: dict[str, str | None] = {semconv.LIMIT: result.limit, semconv.CUT: result.cut}
        extra = {key: value for key, value in found.items() if value is not None}
        self._end(result.outcome, tokens, finish=result.finish_reason, per_token=per_token, extra=extra)

    def failed(self, error: OtelctxError, sampled: int) -> None:
        self._end(outcome_of(error), sampled, error=error)

    def cancelled(self, sampled: int) -> None:
        """The reader has gone. Nothing happens if there was an outcome before."""
        self._end("cancelled", sampled)

    def _end(
        self,
        outcome: Outcome,
        sampled: int,
        *,
        finish: str = "error",
        error: BaseException | None = None,
        per_token: float | None = None,
        extra: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        attributes: dict[str, AttributeValue] = {semconv.GEN_AI_FINISH_REASONS: [finish], **(extra or {})}
        if self._started and self._request.response_id is not None:
            attributes[semconv.GEN_AI_RESPONSE_ID] = sanitize.text(self._request.response_id)
        if self._ladder is not None:
            self._ladder.left(self)
            if self._ladder.level:
                attributes[semconv.PRESSURE_LEVEL] = self._ladder.level
        if self._prompt:
            attributes |= self._spent(sampled)
        if sampled:
            self._trace.note({semconv.GEN_AI_OUTPUT_TOKENS: sampled})
        first = None if self._first is None else self._first - self.times.started
        if first is not None and self._request.stream:
            attributes[semconv.GEN_AI_TIME_TO_FIRST_CHUNK] = first
        transcript = self._transcript
        if transcript.on_span:
            attributes |= transcript.as_attributes(transcript.answered(finish))
        details = transcript.asked() | transcript.answered(finish) if transcript.on_event else None
        ended = self._trace.end(
            outcome,
            self.times.ns(self.times.now()),
            error=error,
            attributes=attributes,
            details=details,
            time_to_first_token=first,
            time_per_token=per_token,
        )
        if ended and self._prompt:
            self._count(sampled)

    def _spent(self, sampled: int) -> dict[str, AttributeValue]:
        window = self.window
        spent: dict[str, AttributeValue] = {
            semconv.GEN_AI_INPUT_TOKENS: self._prompt,
            semconv.GEN_AI_OUTPUT_TOKENS: sampled,
            semconv.GEN_AI_CACHE_READ_TOKENS: self._reused,
            semconv.WINDOW_MODE: self._mode,
            semconv.WINDOW_USED: window.used,
            semconv.WINDOW_LIMIT: window.limit,
            semconv.WINDOW_EVICTED: window.evicted,
            semconv.WINDOW_VERSION: window.version,
        }
        # Never false: the conventions know it only as true.
        return spent | {semconv.GEN_AI_COMPACTED: True} if self._dropped else spent

    def _count(self, sampled: int) -> None:
        self._record_up(USAGE_INPUT.spec, self._prompt)
        self._record_up(USAGE_OUTPUT.spec, sampled)
        prefilled = self._prompt - self._reused if self._started else 0
        counts = {
            "reused": self._reused,
            "prefilled": prefilled,
            "evicted": self._evicted,
            "recomputed": self._recomputed,
        }
        for action, tokens in counts.items():
            if tokens:
                instruments().kv_tokens.add(tokens, {semconv.ACTION: action}, self._trace.context)

    # events and the caller's scope

    def _truncated(self, verdict: Truncate, admission: Admission) -> None:
        self._dropped = verdict.dropped
        self._overflow(verdict.before, verdict.after, verdict.reason, verdict.action)
        removed = self._tokens(verdict.before, verdict.after, verdict.reason, verdict.action)
        self._trace.event(semconv.EVENT_TRUNCATION, removed)
        self._record_up(TRUNCATED.spec, True)
        if admission.evicted:
            left = admission.before - admission.evicted
            self._trace.event(
                semconv.EVENT_EVICTION, self._tokens(admission.before, left, verdict.reason, verdict.action)
            )

    def _slid(self, ended: Ended) -> None:
        """Once a turn, however often its context has slid."""
        self._evicted += ended.evicted
        self._recomputed = ended.recomputed
        demand = ended.used + ended.evicted
        self._overflow(demand, ended.used, "output", "slide")
        self._trace.event(semconv.EVENT_EVICTION, self._tokens(demand, ended.used, "output", "slide"))

    def _overflow(self, before: int, after: int, reason: str, action: str) -> None:
        self._trace.event(semconv.EVENT_OVERFLOW, self._tokens(before, after, reason, action))
        self._record_up(OVERFLOWED.spec, True)

    def _tokens(self, before: int, after: int, reason: str, action: str) -> dict[str, AttributeValue]:
        return {
            semconv.TOKENS_BEFORE: before,
            semconv.TOKENS_AFTER: after,
            semconv.TOKENS_LIMIT: self.window.limit,
            semconv.REASON: reason,
            semconv.ACTION: action,
        }

    def _show(self, window: Window) -> None:
        self.window = window
        if self._scope is not None:
            self._scope.report(window)

    def _record_up(self, spec: KeySpec, value: int) -> None:
        scope = self._scope
        if scope is None:
            return
        if scope.ended:
            instruments().late.add(1)
        else:
            scope.record(spec, value)


def _asked(request: TurnRequest) -> dict[str, AttributeValue]:
    params = request.params
    asked: dict[str, AttributeValue] = {
        semconv.GEN_AI_REQUEST_TEMPERATURE: float(params.temperature),
        semconv.GEN_AI_REQUEST_TOP_P: float(params.top_p),
    }
    if request.max_tokens is not None:
        asked[semconv.GEN_AI_REQUEST_MAX_TOKENS] = min(request.max_tokens, INT_MAX)
    if params.top_k:
        asked[semconv.GEN_AI_REQUEST_TOP_K] = min(params.top_k, INT_MAX)
    if params.frequency_penalty:
        asked[semconv.GEN_AI_REQUEST_FREQUENCY_PENALTY] = float(params.frequency_penalty)
    if params.presence_penalty:
        asked[semconv.GEN_AI_REQUEST_PRESENCE_PENALTY] = float(params.presence_penalty)
    # Telemetry carries 64 bits; one integer beyond them would cost the whole batch of spans.
    if params.seed is not None and INT_MIN <= params.seed <= INT_MAX:
        asked[semconv.GEN_AI_REQUEST_SEED] = params.seed
    if request.stream:
        asked[semconv.GEN_AI_REQUEST_STREAM] = True
    return asked
