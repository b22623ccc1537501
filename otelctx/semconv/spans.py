"""Every type of span that we start, and what may stand on it."""

from __future__ import annotations

from typing import Final

from otelctx.semconv import genai, http, own
from otelctx.semconv.model import SpanType, Uses, uses

SPAN_HTTP_SERVER: Final = "http.server"
SPAN_BACKGROUND: Final = "otelctx.background"
SPAN_WEBSOCKET: Final = "otelctx.websocket"
SPAN_HTTP_CLIENT: Final = "http.client"
SPAN_RPC_SERVER: Final = "rpc.server"
SPAN_RPC_CLIENT: Final = "rpc.client"
SPAN_INFERENCE: Final = "gen_ai.inference"
SPAN_QUEUE: Final = "otelctx.queue"
SPAN_PREFILL: Final = "otelctx.prefill"
SPAN_DECODE: Final = "otelctx.decode"
SPAN_CHECK: Final = "otelctx.check"

_FLAGS: Final = (own.OVERFLOW, own.TRUNCATED, own.DEGRADED)
# What came with a request, and what has come back of what it asked for.
_CONTEXT: Final = (http.SESSION_ID_ATTRIBUTE, own.CONTEXT_SOURCE, own.CONTEXT_INCOMPLETE, own.FRAME_KIND, own.RESYNC)
_WINDOW: Final = (own.WINDOW_USED, own.WINDOW_LIMIT, own.WINDOW_EVICTED, own.WINDOW_VERSION)
_USAGE: Final = (genai.GEN_AI_INPUT_TOKENS, genai.GEN_AI_OUTPUT_TOKENS)

_HTTP_SERVER: Final = uses(
    required=(http.HTTP_REQUEST_METHOD, http.URL_PATH, http.URL_SCHEME),
    conditional=(
        http.ERROR_TYPE,
        http.HTTP_REQUEST_METHOD_ORIGINAL,
        http.HTTP_RESPONSE_STATUS_CODE,
        http.HTTP_ROUTE,
        http.SERVER_PORT,
        http.URL_QUERY,
        own.DISCONNECTED,
        own.CHUNKS,
        own.TIME_TO_FIRST_BYTE,
        own.WINDOW_RESTORED,
        *_CONTEXT,
        *_FLAGS,
        *_WINDOW,
        own.USAGE_INPUT,
        own.USAGE_OUTPUT,
    ),
    recommended=(
        http.CLIENT_ADDRESS,
        http.NETWORK_PEER_ADDRESS,
        http.NETWORK_PEER_PORT,
        http.NETWORK_PROTOCOL_VERSION,
        http.SERVER_ADDRESS,
        http.USER_AGENT,
    ),
    opt_in=(
        http.HTTP_REQUEST_HEADER,
        http.HTTP_RESPONSE_HEADER,
        http.HTTP_REQUEST_BODY_SIZE,
        http.HTTP_RESPONSE_BODY_SIZE,
    ),
)
_HTTP_CLIENT: Final = uses(
    required=(http.HTTP_REQUEST_METHOD, http.SERVER_ADDRESS, http.SERVER_PORT, http.URL_FULL),
    conditional=(
        http.ERROR_TYPE,
        http.HTTP_REQUEST_METHOD_ORIGINAL,
        http.HTTP_RESPONSE_STATUS_CODE,
        http.HTTP_RESEND_COUNT,
        http.SESSION_ID_ATTRIBUTE,
        own.FRAME_KIND,
        own.RESYNC,
    ),
    recommended=(http.NETWORK_PEER_ADDRESS, http.NETWORK_PEER_PORT, http.NETWORK_PROTOCOL_VERSION),
)
_RPC: Final = uses(
    required=(http.RPC_SYSTEM, http.RPC_METHOD),
    conditional=(http.ERROR_TYPE, http.RPC_STATUS_CODE, http.SESSION_ID_ATTRIBUTE, own.FRAME_KIND, own.RESYNC),
)
_RPC_CLIENT: Final[Uses] = _RPC | uses(conditional=(http.SERVER_ADDRESS, http.SERVER_PORT))
_RPC_SERVER: Final[Uses] = _RPC | uses(
    conditional=(*_CONTEXT, *_FLAGS),
    recommended=(http.CLIENT_ADDRESS, http.NETWORK_PEER_ADDRESS, http.NETWORK_PEER_PORT),
)
_INFERENCE: Final = uses(
    required=(genai.GEN_AI_OPERATION, genai.GEN_AI_PROVIDER, own.OUTCOME),
    conditional=(
        http.ERROR_TYPE,
        http.SESSION_ID_ATTRIBUTE,
        genai.GEN_AI_CONVERSATION_ID,
        genai.GEN_AI_REQUEST_MODEL,
        genai.GEN_AI_REQUEST_SEED,
        genai.GEN_AI_REQUEST_TOP_K,
        genai.GEN_AI_REQUEST_STREAM,
        genai.GEN_AI_COMPACTED,
        own.LIMIT,
        own.CUT,
        own.WINDOW_MODE,
        own.SPECIAL_TOKENS,
        own.PRESSURE_LEVEL,
        *_WINDOW,
        *_FLAGS,
    ),
    recommended=(
        genai.GEN_AI_REQUEST_MAX_TOKENS,
        genai.GEN_AI_REQUEST_TEMPERATURE,
        genai.GEN_AI_REQUEST_TOP_P,
        genai.GEN_AI_REQUEST_FREQUENCY_PENALTY,
        genai.GEN_AI_REQUEST_PRESENCE_PENALTY,
        genai.GEN_AI_RESPONSE_ID,
        genai.GEN_AI_RESPONSE_MODEL,
        genai.GEN_AI_FINISH_REASONS,
        genai.GEN_AI_TIME_TO_FIRST_CHUNK,
        genai.GEN_AI_CACHE_READ_TOKENS,
        *_USAGE,
    ),
    opt_in=(genai.GEN_AI_INPUT_MESSAGES, genai.GEN_AI_OUTPUT_MESSAGES, genai.GEN_AI_STOP_SEQUENCES),
)

SPANS: Final[dict[str, SpanType]] = {
    s.id: s
    for s in (
        SpanType(
            SPAN_HTTP_SERVER,
            "{http.request.method}[ {http.route}]",
            "SERVER",
            "a request to an ASGI application, up to the last byte; of a websocket the handshake",
            _HTTP_SERVER,
            "http",
            "stable",
        ),
        SpanType(
            SPAN_BACKGROUND,
            "{http.request.method}[ {http.route}] background",
            "INTERNAL",
            "what an application does after the last byte, or after a websocket was denied or is over, if it is "
            "traced: a trace of its own, linked to the request",
            uses(conditional=(http.SESSION_ID_ATTRIBUTE, http.ERROR_TYPE, *_FLAGS)),
        ),
        SpanType(
            SPAN_WEBSOCKET,
            "websocket[ {http.route}]",
            "INTERNAL",
            "a websocket from accept to close: a trace of its own, linked to the handshake",
            uses(
                recommended=(own.MESSAGES_RECEIVED, own.MESSAGES_SENT),
                conditional=(
                    http.SESSION_ID_ATTRIBUTE,
                    http.HTTP_ROUTE,
                    http.HTTP_RESPONSE_STATUS_CODE,
                    http.ERROR_TYPE,
                    own.CLOSE_CODE,
                    *_FLAGS,
                    *_WINDOW,
                ),
            ),
        ),
        SpanType(
            SPAN_HTTP_CLIENT,
            "{http.request.method}",
            "CLIENT",
            "one attempt at a request, to the end of the response's body",
            _HTTP_CLIENT,
            "http",
            "stable",
        ),
        SpanType(SPAN_RPC_SERVER, "{rpc.method}", "SERVER", "an inbound gRPC call", _RPC_SERVER, "rpc"),
        SpanType(
            SPAN_RPC_CLIENT, "{rpc.method}", "CLIENT", "one attempt at a gRPC call, to its end", _RPC_CLIENT, "rpc"
        ),
        SpanType(
            SPAN_INFERENCE,
            "{gen_ai.operation.name} {gen_ai.request.model}",
            "INTERNAL",
            "one turn, from its arrival to its outcome; CLIENT where the model runs in another process",
            _INFERENCE,
            "gen_ai",
        ),
        SpanType(SPAN_QUEUE, "queue", "INTERNAL", "a turn waits for its session and its row", uses(conditional=_FLAGS)),
        SpanType(
            SPAN_PREFILL,
            "prefill",
            "INTERNAL",
            "a turn's prompt is computed, up to the first token",
            uses(
                recommended=(own.TOKENS_PREFILLED, genai.GEN_AI_CACHE_READ_TOKENS),
                conditional=(own.ROW, own.REUSE_MISS, genai.GEN_AI_OUTPUT_TOKENS, *_FLAGS),
            ),
        ),
        SpanType(
            SPAN_DECODE,
            "decode",
            "INTERNAL",
            "a turn's answer is generated; never a span for a token",
            uses(conditional=(genai.GEN_AI_OUTPUT_TOKENS, *_FLAGS)),
        ),
        SpanType(SPAN_CHECK, "otelctx.check", "INTERNAL", "what handle.check() sends, to see it arrive", uses()),
    )
}
