"""What each step must have done, and each figure entered twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from otelctx import semconv
from otelctx.demo.client import Reply
from otelctx.demo.figures import Hop, Tokens
from otelctx.demo.ledger import Ledger
from otelctx.demo.script import Turn
from otelctx.demo.spans import forest
from otelctx.demo.tap import ACK, FRAME, Tap
from otelctx.testing.spans import Point, SeenSpan

__all__ = ["answered", "complete", "frame_bytes", "gone", "on_the_wire", "refused", "spent", "whole_trace"]

SERVICES: Final = ("client", "frontend", "worker")


def complete(spans: Sequence[SeenSpan]) -> bool:
    """Everything has arrived: the worker's turn, and every span from it up to the client's own root."""
    roots = forest(spans)
    return len(roots) == 1 and not roots[0].span.parent_id and any(span.name.startswith("chat ") for span in spans)


def whole_trace(ledger: Ledger, step: str, spans: Sequence[SeenSpan]) -> None:
    """One tree over three services, with one SERVER span in each of two and nothing twice."""
    ledger.require(step, "one tree of spans", len(forest(spans)) == 1)
    ledger.require(step, "three services", {s.service for s in spans} == set(SERVICES))
    servers = [s.service for s in spans if s.kind == "SERVER"]
    ledger.require(step, "one SERVER span in each service", sorted(servers) == ["frontend", "worker"])
    ledger.require(step, "no span twice", len({s.span_id for s in spans}) == len(spans))


def on_the_wire(ledger: Ledger, turn: Turn, hops: Sequence[Hop], tokens: Tokens) -> None:
    """Frames of the kind that the step is about, signed, and told alike by the services that received them."""
    ledger.require(turn.name, "one exchange on each hop", len(hops) == 2)
    for hop, service in zip(hops, SERVICES[1:], strict=False):
        ledger.require(turn.name, f"a {turn.frame} frame to the {service}, not {hop.frame}", hop.frame == turn.frame)
        ledger.require(turn.name, f"a signed frame to the {service}", hop.signed)
        ledger.compare(turn.name, f"frame received by the {service}", tokens.frames.get(service), hop.frame)


def answered(ledger: Ledger, turn: Turn, reply: Reply, tokens: Tokens) -> None:
    """What the answer says of itself, and what the span says."""
    usage, extension = reply.usage, reply.extension
    ledger.require(turn.name, f"status 200, not {reply.status}", reply.status == 200)
    ledger.require(turn.name, "an answer", bool(reply.text))
    reused = extension.get("reused")
    window = extension.get("window") or {}
    prompt = usage.get("prompt_tokens", 0)
    ledger.compare(turn.name, "prompt tokens", prompt, tokens.input)
    ledger.compare(turn.name, "output tokens", usage.get("completion_tokens"), tokens.output)
    ledger.compare(turn.name, "reused tokens", reused, tokens.reused)
    ledger.compare(turn.name, "prefilled tokens", prompt - (reused or 0), tokens.prefilled)
    ledger.compare(turn.name, "tokens in the window", window.get("used"), tokens.used)
    ledger.compare(turn.name, "dropped tokens", extension.get("dropped"), dropped(tokens))
    ledger.require(turn.name, "a time to the first token", tokens.ttft is not None and tokens.ttft > 0)


def dropped(tokens: Tokens) -> int:
    """Tokens that the truncation events of a turn removed."""
    found = [e.attributes for e in tokens.events if e.name == semconv.EVENT_TRUNCATION]
    return sum(int(a[semconv.TOKENS_BEFORE]) - int(a[semconv.TOKENS_AFTER]) for a in found)


def refused(ledger: Ledger, turn: Turn, reply: Reply, tokens: Tokens) -> None:
    """A prompt that can't fit: 400 with the numbers, and an overflow event on the span."""
    error = reply.error
    ledger.require(turn.name, f"status 400, not {reply.status}", reply.status == 400)
    ledger.require(turn.name, "the code", error.get("code") == "context_length_exceeded")
    ledger.compare(turn.name, "outcome", "rejected", tokens.outcome)
    events = [e for e in tokens.events if e.name == semconv.EVENT_OVERFLOW]
    ledger.require(turn.name, "one overflow event", len(events) == 1)
    counted = error.get("n_prompt_tokens", error.get("n_prompt_tokens_at_least"))
    for event in events:
        ledger.compare(turn.name, "prompt tokens refused", counted, event.attributes.get(semconv.TOKENS_BEFORE))


def gone(ledger: Ledger, turn: Turn, spans: Iterable[SeenSpan], tokens: Tokens, resets: int) -> None:
    """A client that vanished: the turn was cancelled, and both services know why."""
    ledger.compare(turn.name, "outcome", "cancelled", tokens.outcome)
    ledger.compare(turn.name, "resets of connections", 1, resets)
    knowing = {s.service for s in spans if s.kind == "SERVER" and s.attributes.get(semconv.DISCONNECTED) is True}
    ledger.require(turn.name, "both services saw it go", knowing == set(SERVICES[1:]))


def spent(ledger: Ledger, counted: int, rows: Iterable[Tokens], hops: Iterable[Sequence[Hop]]) -> None:
    """Output tokens on their way up: the client's own sum, the spans, and the acks on both hops."""
    # A vanished turn's tokens were made and are counted, though its session does not keep them.
    ledger.compare("usage", "output tokens known to the client", counted, sum(t.output or 0 for t in rows))
    for index, hop in enumerate(zip(*hops, strict=True)):
        acks = [h.ack for h in hop if h.ack is not None]
        total = sum(int(e.value) for ack in acks for e in ack.ups if e.name == semconv.USAGE_OUTPUT_TOKENS)
        ledger.compare("usage", f"output tokens in the acks on hop {index + 1}", counted, total)


def frame_bytes(ledger: Ledger, points: Sequence[Point], taps: Sequence[Tap]) -> None:
    """Bytes of frames and acks: the services' own counters, and the taps."""
    for tap, service in zip(taps, SERVICES[1:], strict=True):
        frames = sum(len(v) for x in tap.exchanges for v in x.request.values(FRAME))
        acks = sum(len(v) for x in tap.exchanges if x.response for v in x.response.values(ACK))
        for direction, seen in (("received", frames), ("sent", acks)):
            own = [p for p in points if p.attributes["service.name"] == service]
            kinds = {"received": ("full", "delta", "ref"), "sent": ("ack", "nack")}[direction]
            counted = sum(
                int(p.value)
                for p in own
                if p.attributes[semconv.FRAME_DIRECTION] == direction and p.attributes[semconv.FRAME_KIND] in kinds
            )
            ledger.compare("bytes", f"frame bytes {direction} by the {service}", counted, seen)
