"""The headers of a copy of a request: trace context, baggage and frame, each once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from opentelemetry.context import Context

from otelctx.context.keys import KeyRegistry
from otelctx.exchange import w3c
from otelctx.exchange.baggage import baggage_line
from otelctx.exchange.client import ClientExchange
from otelctx.semconv import HEADER, TIMEOUT_HEADER

__all__ = ["Headers", "outgoing"]

Headers = list[tuple[bytes, bytes]]

_OURS: Final = HEADER.encode()
_BAGGAGE: Final = "baggage"


def outgoing(
    present: Iterable[tuple[bytes, bytes]], exchange: ClientExchange, context: Context, registry: KeyRegistry
) -> Headers:
    """``present`` as it goes out. Whatever ``otelctx*`` an inbound request has left there is removed first.

    ``context`` has the CLIENT span.
    """
    carrier: dict[str, str] = {}
    w3c.inject(carrier, context)
    injected = {name.lower(): value for name, value in carrier.items()}
    lines: Headers = []
    baggage: list[str] = []
    for name, value in present:
        key = name.lower()
        if key == b"baggage":
            baggage.append(value.decode("latin-1"))
        elif not key.startswith(_OURS) and key.decode("latin-1") not in injected:
            lines.append((name, value))
    line = baggage_line(injected.pop(_BAGGAGE, None), baggage, exchange.members, registry)
    if line is not None:
        injected[_BAGGAGE] = line
    injected.update(exchange.headers)
    if exchange.timeout is not None:
        injected[TIMEOUT_HEADER] = exchange.timeout
    lines += [(name.encode(), value.encode("latin-1", "replace")) for name, value in injected.items()]
    return lines
