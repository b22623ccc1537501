"""One attempt at one request: a CLIENT span up to the end of the body, a duration on every way out, and the exchange.

:mod:`otelctx.clients.handshake` drives it: ``start`` → ``headers`` → the library sends → ``answered`` (perhaps
``again``) → ``end``, or ``failed`` with what was raised.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic, perf_counter, time
from typing import Any, Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider

from otelctx import semconv
from otelctx.clients.headers import Headers, outgoing
from otelctx.clients.peer import Peer
from otelctx.clients.target import Target
from otelctx.exchange.client import ClientExchange, Verdict, begin
from otelctx.exchange.node import Node, default_node
from otelctx.telemetry import events
from otelctx.telemetry.http import count_frame, error_type, record_exception
from otelctx.telemetry.instruments import instruments, tracer
from otelctx.telemetry.session import session_attributes

__all__ = ["Attempt", "Head", "Others", "Party", "quiet", "start", "suppressed"]

_SUPPRESS: Final = getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")
_SUPPRESS_HTTP: Final = getattr(otel_context, "_SUPPRESS_HTTP_INSTRUMENTATION_KEY", "suppress_http_instrumentation")
_TOO_LARGE: Final = 431
_BY_US: Final = otel_context.create_key("otelctx-suppressed")

# Modules that instrument the same library, and would make a second span if they are loaded.
Others = tuple[str, ...]


class Head(NamedTuple):
    """A response head: its status, ``1.1`` or ``2`` if it is known, and the values of its ``otelctx-ack`` lines.

    ``too_large``: whatever the status, something on the way has refused the request's headers for their size.
    ``peer``: the other end of the connection, if the library tells.
    """

    status: int
    version: str | None
    acks: Sequence[bytes | str]
    too_large: bool
    peer: Peer | None = None


def suppressed() -> bool:
    """Whether somebody asked for no instrumentation here, as exporters do for their own requests.

    What we ask of others is no reason for us: an application that a transport runs in this process may call on.
    """
    if otel_context.get_value(_SUPPRESS):
        return True
    return bool(otel_context.get_value(_SUPPRESS_HTTP)) and not otel_context.get_value(_BY_US)


def quiet(others: Others, context: Context) -> Context:
    """``context``; if one of ``others`` is loaded, they shall do nothing in it. An application in it is not meant."""
    if not any(name in sys.modules for name in others):
        return context
    return otel_context.set_value(_BY_US, True, otel_context.set_value(_SUPPRESS_HTTP, True, context))


@dataclass(frozen=True, slots=True)
class Party:
    """In whose name requests are made; each ``None`` is the process's own, looked up when it is needed."""

    node: Node | None = None
    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None


def _foreign(others: Others) -> Span | None:
    """The current span, if it is that of one of ``others`` for this very request: they may stand around us."""
    span = trace.get_current_span()
    if not span.is_recording() or getattr(span, "kind", None) is not SpanKind.CLIENT:
        return None
    return span if getattr(getattr(span, "instrumentation_scope", None), "name", None) in others else None


def start(party: Party, target: Target, others: Others = ()) -> Attempt:
    """Begin the exchange with what is current, and its span, unless one of ``others`` has begun one."""
    exchange = begin(
        party.node or default_node(),
        scheme=target.scheme,
        host=target.host,
        port=target.port,
        method=target.method,
        path=target.path,
        body=target.body,
        attempt=target.attempt or int(target.full),
        idempotent=target.idempotent,
        now=monotonic(),
        unix=time(),
    )
    return Attempt(party, target, exchange, otel_context.get_current(), target.attempt, _foreign(others))


class Attempt:
    """In ``context`` the span is the current one. Not for use by two threads at once."""

    __slots__ = (
        "_exchange",
        "_joined",
        "_live",
        "_parent",
        "_party",
        "_point",
        "_resend",
        "_span",
        "_started",
        "_target",
        "context",
    )

    def __init__(
        self,
        party: Party,
        target: Target,
        exchange: ClientExchange,
        parent: Context,
        resend: int,
        joined: Span | None,
    ) -> None:
        self._party = party
        self._target = target
        self._exchange = exchange
        self._parent = parent
        self._resend = resend
        self._live = True
        self._point = target.point()
        values = target.attributes()
        if resend:
            values[semconv.HTTP_RESEND_COUNT] = resend
        values |= session_attributes(exchange.session_id)
        if exchange.kind is not None:
            values[semconv.FRAME_KIND] = exchange.kind
        self._started = perf_counter()
        self._joined = joined
        if joined is not None:
            joined.set_attributes(values)
            self._span, self.context = joined, parent
        else:
            self._span = tracer(party.tracer_provider).start_span(target.span_name, parent, SpanKind.CLIENT, values)
            self.context = trace.set_span_in_context(self._span, parent)

    @property
    def live(self) -> bool:
        """Whether it has not been ended yet."""
        return self._live

    @property
    def sent(self) -> int:
        """How often the request has been sent with this attempt."""
        return self._resend + 1

    def sending_context(self, others: Others) -> Context:
        """``context``, in which none of ``others`` makes a span."""
        return quiet(others, self.context)

    def headers(self, present: Iterable[tuple[bytes, bytes]]) -> Headers:
        """The request's headers as they go out."""
        exchange = self._exchange
        if exchange.kind is not None:
            count_frame(self._party.meter_provider, exchange.kind, "sent", exchange.size)
        node = self._party.node or default_node()
        return outgoing(present, exchange, self.context, node.registry)

    def answered(self, head: Head) -> bool:
        """The response head is here. Whether this response is to be dropped, and :meth:`again` sent."""
        exchange, point, (status, version, acks, too_large, peer) = self._exchange, self._point, head
        verdict = exchange.close(_TOO_LARGE if too_large else status, acks, monotonic(), time())
        point[semconv.HTTP_RESPONSE_STATUS_CODE] = status
        values: dict[str, Any] = {semconv.HTTP_RESPONSE_STATUS_CODE: status}
        if version is not None:
            values[semconv.NETWORK_PROTOCOL_VERSION] = point[semconv.NETWORK_PROTOCOL_VERSION] = version
        if peer is not None:
            values[semconv.NETWORK_PEER_ADDRESS], values[semconv.NETWORK_PEER_PORT] = peer
        if verdict is Verdict.RESEND:
            # Asked for by the protocol: no error of anybody.
            values[semconv.RESYNC] = True
        elif status >= 400:
            values[semconv.ERROR_TYPE] = point[semconv.ERROR_TYPE] = str(status)
            self._span.set_status(StatusCode.ERROR)
        self._span.set_attributes(values)
        self._count()
        return verdict is Verdict.RESEND

    def again(self) -> Attempt:
        """The repetition, with a span of its own. This one must have been ended."""
        return Attempt(self._party, self._target, self._exchange, self._parent, self._resend + 1, self._joined)

    def resent(self, times: int) -> None:
        """The library itself has sent the request ``times`` more, within this attempt."""
        self._span.set_attribute(semconv.HTTP_RESEND_COUNT, self._resend + times)

    def _count(self) -> None:
        exchange = self._exchange
        if exchange.ack_kind is not None:
            count_frame(self._party.meter_provider, exchange.ack_kind, "received", exchange.ack_size)
        if exchange.late:
            instruments(self._party.meter_provider).late.add(1)
        if exchange.lost is not None:
            reason = {semconv.REASON: exchange.lost}
            events.emit(semconv.EVENT_CONTEXT_LOST, reason, span=self._span, context=self._parent)

    def end(self, error: BaseException | None = None) -> None:
        """Over, at the end of the body or by ``error``; only the first call counts.

        A cancellation, a body closed early and whatever else is no ``Exception`` is no error: somebody wanted it.
        """
        if not self._live:
            return
        self._live = False
        if isinstance(error, Exception):
            self._point[semconv.ERROR_TYPE] = error_type(error)
        if isinstance(error, Exception) and self._span.is_recording():  # a joined one may have ended with the head
            record_exception(self._span, error)
            self._span.set_attribute(semconv.ERROR_TYPE, error_type(error))
            self._span.set_status(StatusCode.ERROR)
        elapsed = perf_counter() - self._started
        instruments(self._party.meter_provider).http_client_duration.record(elapsed, self._point, self.context)
        if self._joined is None:
            self._span.end()

    def failed(self, error: BaseException) -> None:
        """No response came: ``error`` was raised while sending."""
        self._exchange.failed()
        self.end(error)
