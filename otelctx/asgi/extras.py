"""What a middleware records only if it is asked to: headers, sizes of bodies, hosts on metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span

import otelctx.semconv as semconv
from otelctx.asgi.capture import Capture, Lines, capture
from otelctx.asgi.headers import Inbound
from otelctx.asgi.hosts import known_hosts
from otelctx.asgi.sizes import Sizes
from otelctx.telemetry.failure import broken
from otelctx.telemetry.instruments import Instruments

__all__ = ["Extras", "extras"]


@dataclass(frozen=True, slots=True)
class Extras:
    """``hosts``: Host header in lower case → attributes for metrics."""

    request_headers: Capture | None
    response_headers: Capture | None
    body_sizes: bool
    hosts: Mapping[bytes, dict[str, Any]] | None

    def arrived(self, inbound: Inbound, attributes: dict[str, Any]) -> None:
        """Add the request's headers to the ``attributes`` with which its span starts, so that a sampler sees them."""
        if self.request_headers is not None:
            attributes.update(self.request_headers.attributes(inbound.raw))

    def answered(self, span: Span, lines: Lines) -> None:
        """Put the response's headers on ``span``."""
        if self.response_headers is None:
            return
        try:
            span.set_attributes(self.response_headers.attributes(lines))
        except Exception as error:  # lines that are not as ASGI has them, which some servers send all the same
            broken("the capture of headers", error)

    def locate(self, inbound: Inbound, point: dict[str, Any]) -> None:
        """Add the server that was meant to a metric's attributes, if it is a known one."""
        if self.hosts is not None and (found := self.hosts.get((inbound.get(b"host") or b"").lower())):
            point.update(found)

    def measured(self, instruments: Instruments, sizes: Sizes, point: dict[str, Any], context: Context) -> None:
        """Record the sizes of the bodies."""
        instruments.http_server_request_size.record(sizes.received, point, context)
        instruments.http_server_response_size.record(sizes.sent, point, context)


def extras(
    *,
    capture_request_headers: str | Iterable[str],
    capture_response_headers: str | Iterable[str],
    body_sizes: bool,
    metric_hosts: str | Iterable[str],
) -> Extras | None:
    """``None`` if nothing was asked for. Raises :class:`~otelctx.errors.ConfigError` for names that can't be."""
    found = Extras(
        capture("capture_request_headers", capture_request_headers, semconv.HTTP_REQUEST_HEADER),
        capture("capture_response_headers", capture_response_headers, semconv.HTTP_RESPONSE_HEADER),
        body_sizes,
        known_hosts(metric_hosts),
    )
    return None if found == Extras(None, None, False, None) else found
