"""Trace context in the usual case, without a propagator: a ``traceparent`` of version 00 alone.

The propagators of the API take three to four times as long to come to the same. They are asked wherever the case is
not the usual one: another propagator is set, or there is a ``tracestate``, baggage, or a line in another form. A
composite gives up with the first of its parts that raises; here the others still do their part.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagate import get_global_textmap
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import Getter, TextMapPropagator, default_getter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otelctx.exchange.propagator import GRANT, OtelctxPropagator
from otelctx.telemetry.events import SPAN_KEY

__all__ = ["Known", "Remote", "extract", "inject", "known", "parse"]

_TRACEPARENT: Final = "traceparent"
_FLAGS: Final = {b"%02x" % flags: TraceFlags(flags) for flags in range(256)}
# The API keeps the key of the baggage to itself, but not the Context that it makes.
_BAGGAGE_KEY: Final = next(iter(baggage.set_baggage("a", "b", Context())))
_number: Final = int.from_bytes
_STANDARD: Final = (TraceContextTextMapPropagator, W3CBaggagePropagator, OtelctxPropagator)


@dataclass(frozen=True, slots=True)
class Known:
    """What is worth knowing of a propagator: its ``parts``, the ``fields`` that they read, in lower case, if all of
    them tell, and whether with ``traceparent`` it does what W3C says and no more: when it reads, and when it writes
    without a grant."""

    propagator: TextMapPropagator | None
    parts: Sequence[TextMapPropagator] = ()
    fields: frozenset[bytes] | None = frozenset()
    is_w3c: bool = False


_known = Known(None)


def known() -> Known:
    """The global propagator."""
    propagator = get_global_textmap()
    return _known if _known.propagator is propagator else _learn(propagator)


def _learn(propagator: TextMapPropagator) -> Known:
    global _known
    parts = _parts(propagator)
    types = [type(part) for part in parts]
    _known = Known(
        propagator,
        parts,
        _fields(parts),
        TraceContextTextMapPropagator in types and all(kind in _STANDARD for kind in types),
    )
    return _known


def _fields(parts: Sequence[TextMapPropagator]) -> frozenset[bytes] | None:
    try:
        return frozenset(field.lower().encode() for part in parts for field in part.fields)
    except Exception:  # somebody else's code, as extract and inject are
        return None


def _parts(propagator: TextMapPropagator) -> Sequence[TextMapPropagator]:
    """What a composite, as ``configure()`` makes one of what was set before, is composed of in the end."""
    if type(propagator) is not CompositePropagator:
        return (propagator,)
    return tuple(part for inner in getattr(propagator, "_propagators", ()) for part in _parts(inner))


def parse(traceparent: bytes) -> Context | None:
    """A Context with the remote span, an empty one if W3C calls its ids invalid; ``None``: not in the usual form."""
    parts = traceparent.split(b"-", 4)
    if len(parts) != 4:
        return None
    version, trace_id, span_id, hexed = parts
    flags = _FLAGS.get(hexed)
    if version != b"00" or len(trace_id) != 32 or len(span_id) != 16 or flags is None:
        return None
    if traceparent != traceparent.lower():
        return None
    try:
        trace_number, span_number = _number(unhexlify(trace_id)), _number(unhexlify(span_id))
    except ValueError:
        return None
    if not trace_number or not span_number:
        return Context()
    return Context({SPAN_KEY: NonRecordingSpan(SpanContext(trace_number, span_number, True, flags))})


class Remote(NonRecordingSpan):
    """The caller's span, where nothing is recorded: its ``traceparent`` is read once somebody asks for it, and that is
    seldom."""

    def __init__(self, traceparent: bytes) -> None:
        self._unread: bytes | None = traceparent

    def get_span_context(self) -> SpanContext:
        line = self._unread
        if line is not None:
            context = parse(line)
            if context is None:
                context = extract({_TRACEPARENT: line.decode("latin-1")}, default_getter)
            self._context = get_current_span(context).get_span_context()
            self._unread = None
        return self._context

    def __repr__(self) -> str:
        return f"NonRecordingSpan({self.get_span_context()!r})"


def extract(carrier: Any, getter: Getter[Any]) -> Context:
    """What the global propagator reads, from an empty Context: what is current here belongs to somebody else.

    Never raises: a part that does leaves what the others have read.
    """
    found = known()
    context = Context()
    for part in found.parts:
        try:
            # OTEL_PROPAGATORS=none makes this None.
            context = part.extract(carrier, context, getter) or context
        except Exception:
            continue
    return context


def inject(carrier: dict[str, str], context: Context) -> None:
    """What the global propagator writes into ``carrier``. Never raises: of a part that does nothing is written."""
    found = known()
    if found.is_w3c and not context.get(_BAGGAGE_KEY) and not context.get(GRANT):
        # Nobody else writes under this key, and to ask an abstract class whether it is a span takes long.
        read = getattr(context.get(SPAN_KEY), "get_span_context", None)
        if read is not None:
            trace_id, span_id, _, flags, state, valid = read()
            if valid and not state:
                carrier[_TRACEPARENT] = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
                return
    for part in found.parts:
        written: dict[str, str] = {}
        try:
            part.inject(written, context)
        except Exception:
            continue
        carrier.update(written)
