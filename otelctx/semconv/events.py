"""Our events with the counter of each, and those of the conventions that we emit."""

from __future__ import annotations

from typing import Final

from otelctx.semconv import genai, http, own
from otelctx.semconv.model import Event, uses

EVENT_OVERFLOW: Final = "otelctx.overflow"
EVENT_TRUNCATION: Final = "otelctx.truncation"
EVENT_EVICTION: Final = "otelctx.eviction"
EVENT_DEGRADATION: Final = "otelctx.degradation"
EVENT_SESSION_EXPIRED: Final = "otelctx.session.expired"
EVENT_CONTEXT_REJECTED: Final = "otelctx.context.rejected"
EVENT_CONTEXT_RESYNC: Final = "otelctx.context.resync"
EVENT_CONTEXT_PROCEEDED: Final = "otelctx.context.proceeded"
EVENT_CONTEXT_LOST: Final = "otelctx.context.lost"
EVENT_EXCEPTION: Final = "exception"
EVENT_INFERENCE_DETAILS: Final = "gen_ai.client.inference.operation.details"

_TOKENS: Final = uses(
    required=(own.REASON, own.ACTION),
    # A text too long to be counted has no number of tokens.
    conditional=(own.TOKENS_BEFORE, own.TOKENS_AFTER, own.TOKENS_LIMIT),
)
_ROOM: Final = ("window", "prompt", "output")
_NACKS: Final = ("unknown_base", "root", "limit", "table")
_REASON: Final = uses(required=(own.REASON,))
_DEGRADATION: Final = uses(
    required=(own.REASON, own.ACTION, own.PRESSURE_SIGNAL, own.PRESSURE_LEVEL, own.PRESSURE_VALUE),
    conditional=(own.PRESSURE_LEVEL_BEFORE, own.TOKENS_LIMIT),
)

EVENTS: Final[dict[str, Event]] = {
    e.name: e
    for e in (
        Event(EVENT_OVERFLOW, "otelctx.overflows", "demand exceeded a limit, before acting", _TOKENS, _ROOM),
        Event(EVENT_TRUNCATION, "otelctx.truncations", "tokens removed before feeding", _TOKENS, _ROOM),
        Event(
            EVENT_EVICTION,
            "otelctx.evictions",
            "tokens left the window or the KV; one a turn and action",
            _TOKENS,
            _ROOM,
        ),
        Event(
            EVENT_DEGRADATION,
            "otelctx.degradations",
            "a pressure signal moved by a level (rise, fall), or pressure changed or refused a turn (turn)",
            _DEGRADATION,
            ("rise", "fall", "turn"),
        ),
        Event(
            EVENT_SESSION_EXPIRED,
            "otelctx.sessions.expired",
            "a session left the store",
            _REASON,
            ("idle", "capacity", "deleted", "unused"),
        ),
        Event(
            EVENT_CONTEXT_REJECTED,
            "otelctx.context.rejects",
            "an inbound frame was ignored",
            _REASON,
            ("malformed", "oversized", "repeated", "mac", "untrusted", *_NACKS),
        ),
        Event(
            EVENT_CONTEXT_RESYNC,
            "otelctx.context.resyncs",
            "a request was refused for want of a base",
            _REASON,
            _NACKS,
        ),
        Event(EVENT_CONTEXT_PROCEEDED, "otelctx.context.proceeds", "the app ran without the base", _REASON, _NACKS),
        Event(
            EVENT_CONTEXT_LOST,
            "otelctx.context.losses",
            "a compact frame was answered without an ack",
            _REASON,
            ("no_ack", "too_large", "no_room"),
        ),
    )
}

# Set on a child that ends early too: a tail sampler may decide before the root span ends.
EVENT_FLAGS: Final = {
    EVENT_OVERFLOW: own.OVERFLOW,
    EVENT_TRUNCATION: own.TRUNCATED,
    EVENT_DEGRADATION: own.DEGRADED,
}

STANDARD_EVENTS: Final[dict[str, Event]] = {
    e.name: e
    for e in (
        Event(
            EVENT_EXCEPTION,
            "",
            "an exception left the application; on the span it left",
            uses(required=(http.EXCEPTION_TYPE,), recommended=(http.EXCEPTION_MESSAGE, http.EXCEPTION_STACKTRACE)),
            source="general",
            stability="stable",
        ),
        Event(
            EVENT_INFERENCE_DETAILS,
            "",
            "what a turn was asked and has answered; a log record, and only where content is captured on events",
            uses(
                required=(genai.GEN_AI_OPERATION, genai.GEN_AI_PROVIDER),
                conditional=(http.ERROR_TYPE, genai.GEN_AI_REQUEST_MODEL, genai.GEN_AI_CONVERSATION_ID),
                recommended=(genai.GEN_AI_FINISH_REASONS, genai.GEN_AI_INPUT_TOKENS, genai.GEN_AI_OUTPUT_TOKENS),
                opt_in=(genai.GEN_AI_INPUT_MESSAGES, genai.GEN_AI_OUTPUT_MESSAGES),
            ),
            source="gen_ai",
        ),
    )
}
