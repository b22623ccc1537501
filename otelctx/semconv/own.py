"""Attributes of our own."""

from __future__ import annotations

from typing import Final

from otelctx.semconv.model import Attribute

OVERFLOW: Final = "otelctx.overflow"
TRUNCATED: Final = "otelctx.truncated"
DEGRADED: Final = "otelctx.degraded"
OUTCOME: Final = "otelctx.outcome"
LIMIT: Final = "otelctx.limit"
CUT: Final = "otelctx.cut"
ACTION: Final = "otelctx.action"
REASON: Final = "otelctx.reason"
TOKENS_BEFORE: Final = "otelctx.tokens.before"
TOKENS_AFTER: Final = "otelctx.tokens.after"
TOKENS_LIMIT: Final = "otelctx.tokens.limit"
TOKENS_PREFILLED: Final = "otelctx.tokens.prefilled"
REUSE_MISS: Final = "otelctx.reuse.miss"
ROW: Final = "otelctx.row"
USAGE_INPUT: Final = "otelctx.usage.input_tokens"
USAGE_OUTPUT: Final = "otelctx.usage.output_tokens"
WINDOW_MODE: Final = "otelctx.window.mode"
WINDOW_USED: Final = "otelctx.window.used"
WINDOW_LIMIT: Final = "otelctx.window.limit"
WINDOW_EVICTED: Final = "otelctx.window.evicted"
WINDOW_VERSION: Final = "otelctx.window.version"
WINDOW_RESTORED: Final = "otelctx.window.restored"
CONTEXT_SOURCE: Final = "otelctx.context.source"
CONTEXT_INCOMPLETE: Final = "otelctx.context.incomplete"
FRAME_KIND: Final = "otelctx.frame.kind"
FRAME_DIRECTION: Final = "otelctx.frame.direction"
RESYNC: Final = "otelctx.resync"
DISCONNECTED: Final = "otelctx.client.disconnected"
CHUNKS: Final = "otelctx.response.chunks"
TIME_TO_FIRST_BYTE: Final = "otelctx.response.time_to_first_byte"
MESSAGES_RECEIVED: Final = "otelctx.websocket.messages.received"
MESSAGES_SENT: Final = "otelctx.websocket.messages.sent"
CLOSE_CODE: Final = "otelctx.websocket.close_code"
SPECIAL_TOKENS: Final = "otelctx.special_tokens.neutralised"
TELEMETRY_SIGNAL: Final = "otelctx.telemetry.signal"
TELEMETRY_DROP_REASON: Final = "otelctx.telemetry.reason"
PRESSURE_SIGNAL: Final = "otelctx.pressure.signal"
PRESSURE_LEVEL: Final = "otelctx.pressure.level"
PRESSURE_LEVEL_BEFORE: Final = "otelctx.pressure.level_before"
PRESSURE_VALUE: Final = "otelctx.pressure.value"
ARENA_STATE: Final = "otelctx.arena.state"
KV_STATE: Final = "otelctx.kv.state"
LOOKUP_RESULT: Final = "otelctx.session.lookup.result"

OUTCOMES: Final = ("completed", "length", "cancelled", "deadline", "rejected", "shed", "oom", "error")

OWN_ATTRIBUTES: Final[dict[str, Attribute]] = {
    a.key: a
    for a in (
        Attribute(OVERFLOW, "boolean", "demand exceeded a limit; also on a child that ends early, for tail sampling"),
        Attribute(TRUNCATED, "boolean", "something was removed before feeding; also on a child that ends early"),
        Attribute(DEGRADED, "boolean", "pressure changed or refused the request; also on a child that ends early"),
        Attribute(OUTCOME, "string", "how the request ended; exactly one each", OUTCOMES),
        Attribute(
            LIMIT, "string", "which limit ended the output", ("output", "context", "session", "deadline", "memory")
        ),
        Attribute(CUT, "string", "the text was cut inside a structure", ("json", "code", "utf8")),
        Attribute(
            ACTION,
            "string",
            "what was done about an event",
            (
                *("reject", "turns", "slide", "ring", "length"),
                *("max_tokens", "drop_idle", "stream", "shed"),
                *("reused", "prefilled", "evicted", "recomputed", "dropped"),
            ),
        ),
        Attribute(REASON, "string", "why, as a short stable word"),
        Attribute(TOKENS_BEFORE, "int", "tokens before the action"),
        Attribute(TOKENS_AFTER, "int", "tokens after the action"),
        Attribute(TOKENS_LIMIT, "int", "the limit in tokens"),
        Attribute(TOKENS_PREFILLED, "int", "prompt tokens computed, the reused ones left out"),
        Attribute(
            REUSE_MISS,
            "string",
            "why less KV was reused than might have been",
            ("cold", "row_taken", "dropped", "truncated", "prefix_mismatch", "edited", "retokenised"),
        ),
        Attribute(ROW, "int", "KV row of the batch"),
        # Not gen_ai.usage.*: whoever adds those up over a trace would count a turn's twice.
        Attribute(USAGE_INPUT, "int", "what came back of the tokens that a turn had in context"),
        Attribute(USAGE_OUTPUT, "int", "what came back of the tokens of its answer"),
        Attribute(WINDOW_MODE, "string", "what happens when the window is full", ("reject", "turns", "slide", "ring")),
        Attribute(WINDOW_USED, "int", "tokens in the window after the turn"),
        Attribute(WINDOW_LIMIT, "int", "effective window in tokens"),
        Attribute(WINDOW_EVICTED, "int", "tokens evicted since the session began"),
        Attribute(WINDOW_VERSION, "int", "version of the window; each commit is one", unbounded=True),
        Attribute(WINDOW_RESTORED, "int", "the version that a rollback has made current again, as a new one"),
        Attribute(CONTEXT_SOURCE, "string", "where the context came from", ("frame", "baggage", "none")),
        Attribute(CONTEXT_INCOMPLETE, "boolean", "part of the caller's context is missing"),
        Attribute(FRAME_KIND, "string", "kind of frame", ("full", "delta", "ref", "ack", "nack")),
        Attribute(FRAME_DIRECTION, "string", "which way a frame went", ("sent", "received")),
        Attribute(RESYNC, "boolean", "this attempt was refused for want of a base and is repeated with FULL"),
        Attribute(DISCONNECTED, "boolean", "the client went away before the response was complete"),
        Attribute(CHUNKS, "int", "body messages sent"),
        Attribute(TIME_TO_FIRST_BYTE, "double", "seconds from the request's arrival to the first body byte"),
        Attribute(MESSAGES_RECEIVED, "int", "websocket messages received"),
        Attribute(MESSAGES_SENT, "int", "websocket messages sent"),
        Attribute(CLOSE_CODE, "int", "websocket close code"),
        Attribute(SPECIAL_TOKENS, "int", "special tokens found in user text and neutralised"),
        Attribute(TELEMETRY_SIGNAL, "string", "telemetry signal", ("traces", "metrics", "logs")),
        Attribute(
            TELEMETRY_DROP_REASON,
            "string",
            "why it was lost: more than the queue takes, an export that failed, or still waiting at the end",
            ("queue_full", "export", "shutdown"),
        ),
        Attribute(PRESSURE_SIGNAL, "string", "what the pressure comes from", ("memory", "latency")),
        Attribute(PRESSURE_LEVEL, "int", "pressure level, 0 to 3; of a move, the signal's new one"),
        Attribute(PRESSURE_LEVEL_BEFORE, "int", "the signal's level before a move"),
        Attribute(PRESSURE_VALUE, "double", "the signal: reserved / budget, or p99 time to first token / target"),
        Attribute(ARENA_STATE, "string", "state of a page", ("used", "free")),
        Attribute(KV_STATE, "string", "what KV memory is", ("predicted", "reserved", "actual", "budget")),
        Attribute(LOOKUP_RESULT, "string", "where a session was found", ("hit", "cold", "miss")),
    )
}
