"""What both sides of a call have in common: in whose name it is made, and whether somebody else traces it already."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from opentelemetry import trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanKind, TracerProvider

from otelctx.exchange.node import Node, default_node

__all__ = ["OTHER", "Party", "foreign_span", "spell"]

OTHER: Final = "opentelemetry.instrumentation.grpc"


@dataclass(frozen=True, slots=True)
class Party:
    """Each ``None`` is the process's own, looked up when it is needed."""

    node: Node | None = None
    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None

    @property
    def here(self) -> Node:
        return self.node or default_node()


def foreign_span(kind: SpanKind) -> Span | None:
    """The current span, if it is the other instrumentation's for this very call: then there is no need for ours."""
    if OTHER not in sys.modules:
        return None
    span = trace.get_current_span()
    scope = getattr(span, "instrumentation_scope", None)
    ours = span.is_recording() and getattr(span, "kind", None) is kind
    return span if ours and getattr(scope, "name", "").startswith(OTHER) else None


def spell(method: str | bytes) -> tuple[str, str]:
    """``/pkg.Service/Method`` as it is sent, and as the conventions have it, without the first slash."""
    path = method.decode("latin-1") if isinstance(method, bytes) else method
    return path, path.removeprefix("/")
