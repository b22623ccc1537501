"""Names on the wire: the static table, carriers, and the context keys that otelctx itself uses."""

from __future__ import annotations

from typing import Final

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
