"""Every name that otelctx puts on the wire or into telemetry: one table.

Own names live under ``otelctx.``. GenAI strings are kept here too, because opentelemetry-semantic-conventions 0.66b2
marks all of them as moved; they follow semantic-conventions-genai v0.1.0. HTTP names follow the stable HTTP
conventions (1.44.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = [
    "ATTRIBUTES",
    "EVENTS",
    "METRICS",
    "STATIC_TABLE",
    "TABLE_REVISION",
    "TABLE_SINCE",
    "Attribute",
    "Event",
    "Metric",
]

# --- the static table of the wire format: append-only, ids are never reused ---

TABLE_REVISION: Final = 1
STATIC_TABLE: Final[dict[int, str]] = {
    1: "session.id",
    2: "tenant.id",
    3: "user.id",
    4: "gen_ai.conversation.id",
    5: "gen_ai.request.model",
    6: "gen_ai.agent.id",
    7: "gen_ai.agent.name",
    8: "deployment.environment.name",
    9: "cloud.region",
    10: "service.origin",
    11: "client.locale",
    12: "user.tier",
    13: "feature.flags",
    14: "request.priority",
    15: "limit.tokens.total",
    16: "limit.tokens.output",
    17: "prompt.version",
    18: "canary.arm",
    19: "debug.sample",
    20: "otelctx.incomplete",
    21: "policy.id",
    32: "usage.tokens.input",
    33: "usage.tokens.output",
    34: "session.turn",
    35: "window.overflowed",
    36: "window.truncated",
}
# The revision that brought an id, where it was not the first one.
TABLE_SINCE: Final[dict[int, int]] = {}

# --- carriers ---

HEADER: Final = "otelctx"
ACK_HEADER: Final = "otelctx-ack"
# The same over gRPC, where ``-bin`` metadata are bytes.
FRAME_METADATA: Final = "otelctx-bin"
ACK_METADATA: Final = "otelctx-ack-bin"
TIMEOUT_HEADER: Final = "otelctx-timeout-ms"
# Of a gateway's clients, and not under ``otelctx``: those are hop-by-hop and end at the edge.
GATEWAY_SESSION_HEADER: Final = "x-otelctx-session"

# --- context keys that otelctx itself uses ---

SESSION_ID: Final = "session.id"
INCOMPLETE: Final = "otelctx.incomplete"
USAGE_INPUT_TOKENS: Final = "usage.tokens.input"
USAGE_OUTPUT_TOKENS: Final = "usage.tokens.output"
SESSION_TURN: Final = "session.turn"
WINDOW_OVERFLOWED: Final = "window.overflowed"
WINDOW_TRUNCATED: Final = "window.truncated"

# --- attributes ---

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
PRESSURE_SIGNAL: Final = "otelctx.pressure.signal"
PRESSURE_LEVEL: Final = "otelctx.pressure.level"
PRESSURE_LEVEL_BEFORE: Final = "otelctx.pressure.level_before"
PRESSURE_VALUE: Final = "otelctx.pressure.value"

SESSION_ID_ATTRIBUTE: Final = "session.id"
ERROR_TYPE: Final = "error.type"
HTTP_REQUEST_METHOD: Final = "http.request.method"
HTTP_REQUEST_METHOD_ORIGINAL: Final = "http.request.method_original"
HTTP_RESPONSE_STATUS_CODE: Final = "http.response.status_code"
HTTP_ROUTE: Final = "http.route"
HTTP_RESEND_COUNT: Final = "http.request.resend_count"
RPC_SYSTEM: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS_CODE: Final = "rpc.response.status_code"
URL_SCHEME: Final = "url.scheme"
URL_PATH: Final = "url.path"
URL_QUERY: Final = "url.query"
URL_FULL: Final = "url.full"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
CLIENT_ADDRESS: Final = "client.address"
NETWORK_PEER_ADDRESS: Final = "network.peer.address"
NETWORK_PEER_PORT: Final = "network.peer.port"
NETWORK_PROTOCOL_VERSION: Final = "network.protocol.version"
USER_AGENT: Final = "user_agent.original"

GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_REQUEST_SEED: Final = "gen_ai.request.seed"
GEN_AI_REQUEST_STREAM: Final = "gen_ai.request.stream"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
GEN_AI_COMPACTED: Final = "gen_ai.conversation.compacted"
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute key: its type as OpenTelemetry spells it, its values if they are few, and what it says."""

    key: str
    type: Literal["string", "int", "double", "boolean", "string[]"]
    brief: str
    values: tuple[str, ...] = ()


OUTCOMES: Final = ("completed", "length", "cancelled", "deadline", "rejected", "shed", "oom", "error")

ATTRIBUTES: Final[dict[str, Attribute]] = {
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
            ("reject", "turns", "slide", "ring", "length", "max_tokens", "drop_idle", "stream", "shed"),
        ),
        Attribute(REASON, "string", "why, as a short stable word"),
        Attribute(TOKENS_BEFORE, "int", "tokens before the action"),
        Attribute(TOKENS_AFTER, "int", "tokens after the action"),
        Attribute(TOKENS_LIMIT, "int", "the limit in tokens"),
        Attribute(TOKENS_PREFILLED, "int", "prompt tokens computed, the reused ones left out"),
        Attribute(REUSE_MISS, "string", "why less KV was reused than might have been"),
        Attribute(ROW, "int", "KV row of the batch"),
        Attribute(WINDOW_MODE, "string", "what happens when the window is full", ("reject", "turns", "slide", "ring")),
        Attribute(WINDOW_USED, "int", "tokens in the window after the turn"),
        Attribute(WINDOW_LIMIT, "int", "effective window in tokens"),
        Attribute(WINDOW_EVICTED, "int", "tokens evicted since the session began"),
        Attribute(WINDOW_VERSION, "int", "version of the window; each commit is one"),
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
        Attribute(PRESSURE_SIGNAL, "string", "what the pressure comes from", ("memory", "latency")),
        Attribute(PRESSURE_LEVEL, "int", "pressure level, 0 to 3; of a move, the signal's new one"),
        Attribute(PRESSURE_LEVEL_BEFORE, "int", "the signal's level before a move"),
        Attribute(PRESSURE_VALUE, "double", "the signal: reserved / budget, or p99 time to first token / target"),
    )
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One instrument: name, kind, unit (UCUM), the attributes it may carry, and its bucket bounds if a histogram."""

    name: str
    kind: Literal["counter", "histogram", "gauge", "updowncounter"]
    unit: str
    brief: str
    attributes: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One event, the counter that goes with it, and the attributes it carries."""

    name: str
    counter: str
    brief: str
    attributes: tuple[str, ...]


_HTTP_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_GEN_AI_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_TPOT_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_TOKEN_BOUNDS = tuple(float(2**n) for n in range(4, 21))
_HTTP_SERVER = (
    HTTP_REQUEST_METHOD,
    URL_SCHEME,
    HTTP_ROUTE,
    HTTP_RESPONSE_STATUS_CODE,
    NETWORK_PROTOCOL_VERSION,
    ERROR_TYPE,
)
_HTTP_CLIENT = (HTTP_REQUEST_METHOD, SERVER_ADDRESS, SERVER_PORT, HTTP_RESPONSE_STATUS_CODE, ERROR_TYPE)
_RPC_SERVER = (RPC_SYSTEM, RPC_METHOD, RPC_STATUS_CODE, ERROR_TYPE)
_RPC_CLIENT = (*_RPC_SERVER, SERVER_ADDRESS, SERVER_PORT)
_GEN_AI = (GEN_AI_OPERATION, GEN_AI_PROVIDER, GEN_AI_REQUEST_MODEL)
_UPSTREAM = (SERVER_ADDRESS, SERVER_PORT)

EVENT_OVERFLOW: Final = "otelctx.overflow"
EVENT_TRUNCATION: Final = "otelctx.truncation"
EVENT_EVICTION: Final = "otelctx.eviction"
EVENT_DEGRADATION: Final = "otelctx.degradation"
EVENT_SESSION_EXPIRED: Final = "otelctx.session.expired"
EVENT_CONTEXT_REJECTED: Final = "otelctx.context.rejected"
EVENT_CONTEXT_RESYNC: Final = "otelctx.context.resync"
EVENT_CONTEXT_PROCEEDED: Final = "otelctx.context.proceeded"
EVENT_CONTEXT_LOST: Final = "otelctx.context.lost"

_TOKENS = (TOKENS_BEFORE, TOKENS_AFTER, TOKENS_LIMIT, REASON, ACTION)

EVENTS: Final[dict[str, Event]] = {
    e.name: e
    for e in (
        Event(EVENT_OVERFLOW, "otelctx.overflows", "demand exceeded a limit, before acting", _TOKENS),
        Event(EVENT_TRUNCATION, "otelctx.truncations", "tokens removed before feeding", _TOKENS),
        Event(EVENT_EVICTION, "otelctx.evictions", "tokens left the window or the KV; one a turn and action", _TOKENS),
        Event(
            EVENT_DEGRADATION,
            "otelctx.degradations",
            "a pressure signal moved by a level (rise, fall), or pressure changed or refused a turn (turn)",
            (REASON, ACTION, PRESSURE_SIGNAL, PRESSURE_LEVEL_BEFORE, PRESSURE_LEVEL, PRESSURE_VALUE, TOKENS_LIMIT),
        ),
        Event(EVENT_SESSION_EXPIRED, "otelctx.sessions.expired", "a session left the store", (REASON,)),
        Event(EVENT_CONTEXT_REJECTED, "otelctx.context.rejects", "an inbound frame was ignored", (REASON,)),
        Event(EVENT_CONTEXT_RESYNC, "otelctx.context.resyncs", "a request was refused for want of a base", (REASON,)),
        Event(EVENT_CONTEXT_PROCEEDED, "otelctx.context.proceeds", "the app ran without the base", (REASON,)),
        Event(EVENT_CONTEXT_LOST, "otelctx.context.losses", "a compact frame was answered without an ack", (REASON,)),
    )
}

HTTP_SERVER_DURATION: Final = "http.server.request.duration"
HTTP_SERVER_ACTIVE: Final = "http.server.active_requests"
HTTP_CLIENT_DURATION: Final = "http.client.request.duration"
RPC_SERVER_DURATION: Final = "rpc.server.call.duration"
RPC_CLIENT_DURATION: Final = "rpc.client.call.duration"
REQUEST_DURATION: Final = "gen_ai.server.request.duration"
TIME_TO_FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"
TIME_PER_OUTPUT_TOKEN: Final = "gen_ai.server.time_per_output_token"
REQUESTS: Final = "otelctx.requests"
WINDOW_TOKENS: Final = "otelctx.window.tokens"
KV_TOKENS: Final = "otelctx.kv.tokens"
ARENA_PAGES: Final = "otelctx.arena.pages"
SESSIONS: Final = "otelctx.sessions"
SESSION_LOOKUPS: Final = "otelctx.session.lookups"
FRAMES: Final = "otelctx.context.frames"
FRAME_BYTES: Final = "otelctx.context.frame.bytes"
EVENTS_LATE: Final = "otelctx.context.late"
MISTYPED: Final = "otelctx.context.mistyped"
GATEWAY_ACTIVE: Final = "otelctx.gateway.active_requests"
GATEWAY_UP: Final = "otelctx.gateway.upstream.up"
GATEWAY_RETRIES: Final = "otelctx.gateway.retries"
GATEWAY_EJECTIONS: Final = "otelctx.gateway.ejections"
TELEMETRY_DROPPED: Final = "otelctx.telemetry.dropped"
KV_BYTES: Final = "otelctx.kv.bytes"
PRESSURE_RATIO: Final = "otelctx.pressure.ratio"

METRICS: Final[dict[str, Metric]] = {
    m.name: m
    for m in (
        Metric(HTTP_SERVER_DURATION, "histogram", "s", "Duration of HTTP server requests", _HTTP_SERVER, _HTTP_BOUNDS),
        Metric(
            HTTP_SERVER_ACTIVE,
            "updowncounter",
            "{request}",
            "Number of active HTTP server requests",
            (HTTP_REQUEST_METHOD, URL_SCHEME),
        ),
        Metric(HTTP_CLIENT_DURATION, "histogram", "s", "Duration of HTTP client requests", _HTTP_CLIENT, _HTTP_BOUNDS),
        Metric(RPC_SERVER_DURATION, "histogram", "s", "Duration of inbound RPC calls", _RPC_SERVER, _HTTP_BOUNDS),
        Metric(RPC_CLIENT_DURATION, "histogram", "s", "Duration of outbound RPC calls", _RPC_CLIENT, _HTTP_BOUNDS),
        Metric(REQUEST_DURATION, "histogram", "s", "Duration of a chat turn", (*_GEN_AI, ERROR_TYPE), _GEN_AI_BOUNDS),
        Metric(TIME_TO_FIRST_TOKEN, "histogram", "s", "Time to first token of successful turns", _GEN_AI, _TTFT_BOUNDS),
        Metric(TIME_PER_OUTPUT_TOKEN, "histogram", "s", "Time per token after the first", _GEN_AI, _TPOT_BOUNDS),
        Metric(REQUESTS, "counter", "{request}", "Turns by how they ended", (OUTCOME, GEN_AI_REQUEST_MODEL)),
        Metric(
            WINDOW_TOKENS,
            "histogram",
            "{token}",
            "Tokens in the window at the turn's end",
            (WINDOW_MODE,),
            _TOKEN_BOUNDS,
        ),
        Metric(KV_TOKENS, "counter", "{token}", "KV tokens by what happened to them", (ACTION,)),
        Metric(ARENA_PAGES, "gauge", "{page}", "Pages of the token arena by state", ("state",)),
        Metric(
            KV_BYTES, "gauge", "By", "KV memory: reserved for turns in flight, filled, and all there is", ("state",)
        ),
        Metric(SESSIONS, "gauge", "{session}", "Sessions in memory"),
        Metric(PRESSURE_LEVEL, "gauge", "{level}", "Pressure level, 0 to 3"),
        Metric(PRESSURE_RATIO, "gauge", "1", "Pressure signals over their budget or target", (PRESSURE_SIGNAL,)),
        Metric(SESSION_LOOKUPS, "counter", "{lookup}", "Session look-ups by result", ("result",)),
        Metric(FRAMES, "counter", "{frame}", "Context frames and acks by kind", (FRAME_KIND, FRAME_DIRECTION)),
        Metric(FRAME_BYTES, "counter", "By", "Header bytes of frames and acks", (FRAME_KIND, FRAME_DIRECTION)),
        Metric(EVENTS_LATE, "counter", "{ack}", "Acks whose scope had ended when they came"),
        Metric(MISTYPED, "counter", "{read}", "Reads of context keys that a peer has sent with another type"),
        Metric(TELEMETRY_DROPPED, "counter", "{item}", "Telemetry lost before it left", (TELEMETRY_SIGNAL,)),
        Metric(GATEWAY_ACTIVE, "updowncounter", "{request}", "Requests and streams open at an upstream", _UPSTREAM),
        Metric(GATEWAY_UP, "gauge", "1", "1 if an upstream gets requests, 0 while it is ejected", _UPSTREAM),
        Metric(GATEWAY_RETRIES, "counter", "{request}", "Requests sent on to another upstream", (REASON,)),
        Metric(GATEWAY_EJECTIONS, "counter", "{ejection}", "Upstreams taken out for a while", (REASON,)),
        *(Metric(e.counter, "counter", "{event}", e.brief, (REASON, ACTION)) for e in EVENTS.values()),
    )
}
