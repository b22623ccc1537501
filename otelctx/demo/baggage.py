"""What the keys of a frame would cost as W3C baggage, written by OpenTelemetry's own propagator."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context

from otelctx.context.keys import Value

__all__ = ["line_bytes"]


def line_bytes(values: Mapping[str, Value]) -> int:
    """Bytes of the ``baggage`` header line with all of ``values``, name and line end included; 0 for none."""
    context = Context()
    for name, value in values.items():
        context = baggage.set_baggage(name, _text(value), context)
    carrier: dict[str, str] = {}
    W3CBaggagePropagator().inject(carrier, context)
    return sum(len(name) + len(value.encode()) + 4 for name, value in carrier.items())


def _text(value: Value) -> str:
    if isinstance(value, bytes):
        return value.hex()
    # As W3C baggage would have it: everything is text.
    return str(value).lower() if isinstance(value, bool) else str(value)
