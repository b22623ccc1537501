"""Trace context in the usual case, without a propagator: a ``traceparent`` of version 00 alone.

The propagators of the API take three to four times as long to come to the same. They are asked wherever the case is
not the usual one: another propagator is set, or there is a ``tracestate``, baggage, or a line in another form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagate import get_global_textmap
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otelctx.exchange.propagator import OtelctxPropagator
from otelctx.telemetry.events import SPAN_KEY

__all__ = ["Known", "inject", "known", "parse"]

_TRACEPARENT: Final = "traceparent"
_VERSION_00: Final = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_FLAGS: Final = {b"%02x" % flags: TraceFlags(flags) for flags in range(256)}
# The API keeps the key of the baggage to itself, but not the Context that it makes.
_BAGGAGE_KEY: Final = next(iter(baggage.set_baggage("a", "b", Context())))
_INBOUND: Final = (TraceContextTextMapPropagator, W3CBaggagePropagator, OtelctxPropagator)
_OUTBOUND: Final = _INBOUND[:2]  # ours writes a frame where it has been granted


@dataclass(frozen=True, slots=True)
class Known:
    """What is worth knowing of a propagator: the ``fields`` that it reads, in lower case, and whether with
    ``traceparent`` it does what W3C says and no more, when it reads and when it writes."""

    propagator: TextMapPropagator | None
    fields: frozenset[bytes] = frozenset()
    reads_w3c: bool = False
    writes_w3c: bool = False


_known = Known(None)


def known() -> Known:
    """The global propagator."""
    propagator = get_global_textmap()
    return _known if _known.propagator is propagator else _learn(propagator)


def _learn(propagator: TextMapPropagator) -> Known:
    global _known
    parts = getattr(propagator, "_propagators", ()) if type(propagator) is CompositePropagator else (propagator,)
    types = [type(part) for part in parts]
    traces = TraceContextTextMapPropagator in types
    _known = Known(
        propagator,
        frozenset(field.lower().encode() for field in propagator.fields),
        reads_w3c=traces and all(kind in _INBOUND for kind in types),
        writes_w3c=traces and all(kind in _OUTBOUND for kind in types),
    )
    return _known


def parse(traceparent: bytes) -> Context | None:
    """A Context with the remote span, an empty one if W3C calls its ids invalid; ``None``: not in the usual form."""
    match = _VERSION_00.fullmatch(traceparent)
    if match is None:
        return None
    trace_id, span_id, flags = match.groups()
    trace_number, span_number = int(trace_id, 16), int(span_id, 16)
    if not trace_number or not span_number:
        return Context()
    return Context({SPAN_KEY: NonRecordingSpan(SpanContext(trace_number, span_number, True, _FLAGS[flags]))})


def inject(carrier: dict[str, str], context: Context) -> None:
    """What the global propagator writes into ``carrier``. Raises what it raises."""
    found = known()
    if found.writes_w3c and not context.get(_BAGGAGE_KEY):
        # Nobody else writes under this key, and to ask an abstract class whether it is a span takes long.
        read = getattr(context.get(SPAN_KEY), "get_span_context", None)
        if read is not None:
            trace_id, span_id, _, flags, state, valid = read()
            if valid and not state:
                carrier[_TRACEPARENT] = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
                return
    if found.propagator is not None:
        found.propagator.inject(carrier, context)
