"""The OpenTelemetry propagator ``otelctx``, for instrumentation that is not ours.

It extracts only what proves itself: a FULL frame with a valid MAC. By itself it writes nothing: somebody else's client
must not send our header to just anyone. A FULL frame goes out only where an egress :func:`grant` is in the Context.

This module must not import ``opentelemetry.propagate``: when OTEL_PROPAGATORS names it, it is loaded inside that
import.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import (
    CarrierT,
    Getter,
    Setter,
    TextMapPropagator,
    default_getter,
    default_setter,
)

from otelctx.context.current import snapshot, with_scope
from otelctx.context.scope import Scope
from otelctx.context.state import EMPTY, State
from otelctx.delta.codec import decode_frame, from_header, split_mac
from otelctx.delta.messages import FrameKind, full
from otelctx.exchange.node import Node, default_node
from otelctx.policy.egress import view
from otelctx.policy.trust import FRAME
from otelctx.semconv import HEADER, TABLE_REVISION

__all__ = ["GRANT", "OtelctxPropagator", "grant"]

GRANT: Final = otel_context.create_key("otelctx-egress-grant")


def grant(host: str, port: int | None = None, context: Context | None = None, *, node: Node | None = None) -> Context:
    """``context`` in which :meth:`OtelctxPropagator.inject` writes a FULL frame, if ``host`` may receive our context.

    For a request to ``host`` that is made by a client of somebody else, or for a message on a queue of its.
    """
    allowed = (node or default_node()).egress.allows(host, port)
    return otel_context.set_value(GRANT, allowed, context)


class OtelctxPropagator(TextMapPropagator):
    """Entry point ``otelctx`` of ``opentelemetry_propagator``. ``node`` is by default the process's own."""

    def __init__(self, node: Node | None = None) -> None:
        self._node = node

    def extract(
        self, carrier: CarrierT, context: Context | None = None, getter: Getter[CarrierT] = default_getter
    ) -> Context:
        """``context`` (by default an empty one) with a scope of the sender's state in it, or as it was. Never
        raises."""
        context = Context() if context is None else context
        try:
            lines = getter.get(carrier, HEADER)
            state = self._proven(lines, time()) if lines else None
        except Exception:
            # A frame from outside, a getter of somebody else, an environment that is wrong: none of it may cost the
            # request its trace.
            return context
        return context if state is None else with_scope(Scope(state, source="frame"), context)

    def _proven(self, lines: Sequence[str], now: float) -> State | None:
        if len(lines) != 1:
            return None
        body, mac = split_mac(from_header(lines[0]))
        if mac is None or (self._node or default_node()).keyring.verify(FRAME, body, mac, now) is None:
            return None
        frame = decode_frame(body)
        if frame.kind is not FrameKind.FULL or frame.table > TABLE_REVISION:
            return None
        state = EMPTY.apply(frame.put, ())
        return state if state.root == frame.root else None

    def inject(
        self, carrier: CarrierT, context: Context | None = None, setter: Setter[CarrierT] = default_setter
    ) -> None:
        """Write a FULL frame where ``context`` has a :func:`grant`, else nothing. Never raises."""
        try:
            if otel_context.get_value(GRANT, context) is not True:
                return
            node = self._node or default_node()
            state = view(snapshot(context), node.registry)
            if state:
                setter.set(carrier, HEADER, node.wire(full(state), time()))
        except Exception:
            # Overlays that are too much together, a setter of somebody else, an environment that is wrong: a request
            # goes out without context rather than not at all.
            return

    @property
    def fields(self) -> set[str]:
        return {HEADER}
