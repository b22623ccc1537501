"""The figures of one step, out of its exported spans and out of what went over the wire. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from otelctx import semconv
from otelctx.delta.messages import Ack
from otelctx.demo.baggage import line_bytes
from otelctx.demo.frames import Follower, read_ack
from otelctx.demo.tap import ACK, FRAME, Exchange
from otelctx.testing.spans import SeenEvent, SeenSpan

__all__ = ["Hop", "Tokens", "hop", "tokens"]


@dataclass(frozen=True, slots=True)
class Hop:
    """One exchange on one hop. Bytes are those of the header lines; ``baggage`` is what the same keys would take."""

    frame: str
    signed: bool
    frame_bytes: int
    ack_bytes: int
    own_baggage_bytes: int
    baggage: int | None
    keys: int
    ack: Ack | None
    status: int | None


def hop(exchange: Exchange, follower: Follower) -> Hop:
    """Read one exchange off the wire. ``follower`` must have seen those before it."""
    seen = follower.follow(exchange.frame) if exchange.frame else None
    state = seen.state if seen else None
    answer = exchange.response
    return Hop(
        frame=seen.kind if seen else "none",
        signed=seen.signed if seen else False,
        frame_bytes=exchange.request.size(FRAME),
        ack_bytes=answer.size(ACK) if answer else 0,
        own_baggage_bytes=exchange.request.size(b"baggage"),
        baggage=line_bytes(state) if state is not None else None,
        keys=len(state) if state is not None else 0,
        ack=read_ack(exchange.ack) if exchange.ack else None,
        status=exchange.status,
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the worker's ``chat`` span and its children say; ``None`` for what they don't.

    ``ttft``: seconds from the turn's start to the end of its prefill, which samples the first token.
    """

    input: int | None = None
    reused: int | None = None
    prefilled: int | None = None
    output: int | None = None
    ttft: float | None = None
    used: int | None = None
    limit: int | None = None
    outcome: str | None = None
    events: tuple[SeenEvent, ...] = ()
    frames: Mapping[str, str] = field(default_factory=dict)  # service → kind of the frame that it received


def tokens(spans: Iterable[SeenSpan]) -> Tokens:
    """Read one trace."""
    spans = list(spans)
    chat = next((s for s in spans if s.name.startswith("chat ")), None)
    if chat is None:
        return Tokens(frames=_frames(spans))
    found: Mapping[str, Any] = chat.attributes
    prefill = next((s for s in spans if s.name == "prefill" and s.parent_id == chat.span_id), None)
    return Tokens(
        input=found.get(semconv.GEN_AI_INPUT_TOKENS),
        reused=found.get(semconv.GEN_AI_CACHE_READ_TOKENS, 0),
        prefilled=prefill.attributes.get(semconv.TOKENS_PREFILLED) if prefill else None,
        output=found.get(semconv.GEN_AI_OUTPUT_TOKENS),
        ttft=(prefill.end - chat.start) / 1e9 if prefill else None,
        used=found.get(semconv.WINDOW_USED),
        limit=found.get(semconv.WINDOW_LIMIT),
        outcome=found.get(semconv.OUTCOME),
        events=chat.events,
        frames=_frames(spans),
    )


def _frames(spans: Iterable[SeenSpan]) -> dict[str, str]:
    return {
        s.service: s.attributes[semconv.FRAME_KIND]
        for s in spans
        if s.kind == "SERVER" and semconv.FRAME_KIND in s.attributes
    }
