"""Every instrument: HTTP and RPC after the conventions 1.44.0, ``gen_ai.server.*`` after v0.1.0, and our own."""

from __future__ import annotations

from typing import Final

from otelctx.semconv import genai, http, own
from otelctx.semconv.events import EVENTS
from otelctx.semconv.model import Event, Metric, Uses, uses

HTTP_SERVER_DURATION: Final = "http.server.request.duration"
HTTP_SERVER_ACTIVE: Final = "http.server.active_requests"
HTTP_SERVER_REQUEST_SIZE: Final = "http.server.request.body.size"
HTTP_SERVER_RESPONSE_SIZE: Final = "http.server.response.body.size"
HTTP_CLIENT_DURATION: Final = "http.client.request.duration"
RPC_SERVER_DURATION: Final = "rpc.server.call.duration"
RPC_CLIENT_DURATION: Final = "rpc.client.call.duration"
REQUEST_DURATION: Final = "gen_ai.server.request.duration"
TIME_TO_FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"
TIME_PER_OUTPUT_TOKEN: Final = "gen_ai.server.time_per_output_token"
REQUESTS: Final = "otelctx.requests"
WINDOW_TOKENS: Final = "otelctx.window.tokens"
KV_TOKENS: Final = "otelctx.kv.tokens"
KV_BYTES: Final = "otelctx.kv.bytes"
ARENA_PAGES: Final = "otelctx.arena.pages"
ARENA_FRAGMENTATION: Final = "otelctx.arena.fragmentation"
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
PRESSURE_RATIO: Final = "otelctx.pressure.ratio"

_HTTP_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
# The conventions give none for bytes, and the SDK's own end at 10,000: these are gRPC's for messages (gRFC A66).
_SIZE_BOUNDS: Final = (0, *(float(2**n) for n in (10, 11, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32)))
_GEN_AI_BOUNDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TTFT_BOUNDS: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_TPOT_BOUNDS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
# Powers of two: a window's size is one, and so is each step by which one is changed.
_TOKEN_BOUNDS: Final = tuple(float(2**n) for n in range(4, 21))

_HTTP_SERVER: Final = uses(
    required=(http.HTTP_REQUEST_METHOD, http.URL_SCHEME),
    conditional=(http.HTTP_ROUTE, http.HTTP_RESPONSE_STATUS_CODE, http.ERROR_TYPE),
    recommended=(http.NETWORK_PROTOCOL_VERSION,),
    opt_in=(http.SERVER_ADDRESS, http.SERVER_PORT),
)
_HTTP_CLIENT: Final = uses(
    required=(http.HTTP_REQUEST_METHOD, http.SERVER_ADDRESS, http.SERVER_PORT),
    conditional=(http.HTTP_RESPONSE_STATUS_CODE, http.ERROR_TYPE),
    recommended=(http.NETWORK_PROTOCOL_VERSION,),
)
_RPC_SERVER: Final = uses(
    required=(http.RPC_SYSTEM,),
    conditional=(http.RPC_STATUS_CODE, http.ERROR_TYPE),
    recommended=(http.RPC_METHOD,),
)
_RPC_CLIENT: Final[Uses] = _RPC_SERVER | uses(conditional=(http.SERVER_ADDRESS, http.SERVER_PORT))
_GEN_AI: Final = uses(
    required=(genai.GEN_AI_OPERATION, genai.GEN_AI_PROVIDER),
    conditional=(genai.GEN_AI_REQUEST_MODEL,),
)
_TURN: Final[Uses] = _GEN_AI | uses(conditional=(http.ERROR_TYPE,))
_FRAME: Final = uses(required=(own.FRAME_KIND, own.FRAME_DIRECTION))
_UPSTREAM: Final = uses(required=(http.SERVER_ADDRESS, http.SERVER_PORT))
_REASON: Final = uses(required=(own.REASON,))


def _of(event: Event) -> Metric:
    """The counter of ``event``, with those of its attributes that have few values."""
    kept = {key: event.attributes[key] for key in (own.REASON, own.ACTION) if key in event.attributes}
    return Metric(event.counter, "counter", "{event}", event.brief, kept)


METRICS: Final[dict[str, Metric]] = {
    m.name: m
    for m in (
        Metric(
            HTTP_SERVER_DURATION,
            "histogram",
            "s",
            "Duration of HTTP server requests",
            _HTTP_SERVER,
            _HTTP_BOUNDS,
            "http",
            "stable",
        ),
        Metric(
            HTTP_SERVER_ACTIVE,
            "updowncounter",
            "{request}",
            "Number of active HTTP server requests",
            uses(required=(http.HTTP_REQUEST_METHOD, http.URL_SCHEME)),
            source="http",
        ),
        Metric(
            HTTP_SERVER_REQUEST_SIZE,
            "histogram",
            "By",
            "Size of HTTP server request bodies",
            _HTTP_SERVER,
            _SIZE_BOUNDS,
            "http",
        ),
        Metric(
            HTTP_SERVER_RESPONSE_SIZE,
            "histogram",
            "By",
            "Size of HTTP server response bodies",
            _HTTP_SERVER,
            _SIZE_BOUNDS,
            "http",
        ),
        Metric(
            HTTP_CLIENT_DURATION,
            "histogram",
            "s",
            "Duration of HTTP client requests",
            _HTTP_CLIENT,
            _HTTP_BOUNDS,
            "http",
            "stable",
        ),
        Metric(
            RPC_SERVER_DURATION, "histogram", "s", "Duration of inbound RPC calls", _RPC_SERVER, _HTTP_BOUNDS, "rpc"
        ),
        Metric(
            RPC_CLIENT_DURATION, "histogram", "s", "Duration of outbound RPC calls", _RPC_CLIENT, _HTTP_BOUNDS, "rpc"
        ),
        Metric(REQUEST_DURATION, "histogram", "s", "Duration of a chat turn", _TURN, _GEN_AI_BOUNDS, "gen_ai"),
        Metric(
            TIME_TO_FIRST_TOKEN,
            "histogram",
            "s",
            "Time to first token of successful turns",
            _GEN_AI,
            _TTFT_BOUNDS,
            "gen_ai",
        ),
        Metric(
            TIME_PER_OUTPUT_TOKEN,
            "histogram",
            "s",
            "Time per token after the first",
            _GEN_AI,
            _TPOT_BOUNDS,
            "gen_ai",
        ),
        Metric(
            REQUESTS,
            "counter",
            "{request}",
            "Turns by how they ended",
            uses(required=(own.OUTCOME, genai.GEN_AI_REQUEST_MODEL)),
        ),
        Metric(
            WINDOW_TOKENS,
            "histogram",
            "{token}",
            "Tokens in the window at the turn's end",
            uses(required=(own.WINDOW_MODE,)),
            _TOKEN_BOUNDS,
        ),
        Metric(KV_TOKENS, "counter", "{token}", "KV tokens by what happened to them", uses(required=(own.ACTION,))),
        Metric(
            KV_BYTES,
            "gauge",
            "By",
            "KV memory: what turns in flight may fill, what is reserved for them, filled, and all there is",
            uses(required=(own.KV_STATE,)),
        ),
        Metric(ARENA_PAGES, "gauge", "{page}", "Pages of the token arena by state", uses(required=(own.ARENA_STATE,))),
        Metric(ARENA_FRAGMENTATION, "gauge", "1", "Share of the used pages' room that holds no token", uses()),
        Metric(SESSIONS, "gauge", "{session}", "Sessions in memory", uses()),
        Metric(own.PRESSURE_LEVEL, "gauge", "{level}", "Pressure level, 0 to 3", uses()),
        Metric(
            PRESSURE_RATIO,
            "gauge",
            "1",
            "Pressure signals over their budget or target",
            uses(required=(own.PRESSURE_SIGNAL,)),
        ),
        Metric(
            SESSION_LOOKUPS, "counter", "{lookup}", "Session look-ups by result", uses(required=(own.LOOKUP_RESULT,))
        ),
        Metric(FRAMES, "counter", "{frame}", "Context frames and acks by kind", _FRAME),
        Metric(FRAME_BYTES, "counter", "By", "Header bytes of frames and acks", _FRAME),
        Metric(EVENTS_LATE, "counter", "{ack}", "Acks whose scope had ended when they came", uses()),
        Metric(MISTYPED, "counter", "{read}", "Reads of context keys that a peer has sent with another type", uses()),
        Metric(
            TELEMETRY_DROPPED,
            "counter",
            "{item}",
            "Telemetry lost before it left",
            uses(required=(own.TELEMETRY_SIGNAL, own.TELEMETRY_DROP_REASON)),
        ),
        Metric(GATEWAY_ACTIVE, "updowncounter", "{request}", "Requests and streams open at an upstream", _UPSTREAM),
        Metric(GATEWAY_UP, "gauge", "1", "1 if an upstream gets requests, 0 while it is ejected", _UPSTREAM),
        Metric(GATEWAY_RETRIES, "counter", "{request}", "Requests sent on to another upstream", _REASON),
        Metric(GATEWAY_EJECTIONS, "counter", "{ejection}", "Upstreams taken out for a while", _REASON),
        *(_of(e) for e in EVENTS.values()),
    )
}
