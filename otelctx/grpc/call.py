"""One outgoing call: a CLIENT span to its end, a duration on every way out, and the exchange.

A shell drives it: ``start`` → ``metadata`` → gRPC sends → ``answered`` (perhaps ``again``), or ``failed`` with what was
raised. The end of a call is reported by whoever sees it first, the reader of a stream or gRPC's own thread; when any of
them returns from ``answered``, what has come back is in the scope.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from threading import Lock
from time import monotonic, perf_counter, time
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode

from otelctx import semconv
from otelctx.context.current import current_scope
from otelctx.exchange.client import ClientExchange, Verdict, begin
from otelctx.grpc.metadata import Metadata, ack_lines, outgoing
from otelctx.grpc.party import OTHER, Party, foreign_span, spell
from otelctx.grpc.status import http_status
from otelctx.grpc.target import Target
from otelctx.telemetry import events, sanitize
from otelctx.telemetry.http import count_frame, error_type, record_exception
from otelctx.telemetry.instruments import instruments, tracer
from otelctx.telemetry.session import session_attributes

__all__ = ["ClientCall", "size_of", "start", "suppressed"]

_SUPPRESS: Final = getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")
_NO_ROOM: Final = "no_room"


def suppressed() -> bool:
    """Whether somebody asked for no instrumentation here, as exporters do for their own calls."""
    return bool(otel_context.get_value(_SUPPRESS))


def size_of(request: object) -> int:
    """Bytes of a request that can be sent again; 0 where nobody but its serialiser knows."""
    if isinstance(request, bytes | bytearray | memoryview):
        return len(request)
    measure = getattr(request, "ByteSize", None)
    try:
        return int(measure()) if measure is not None else 0
    except Exception:
        return 0


def start(party: Party, target: Target, method: str | bytes, body: int | None) -> ClientCall:
    """Begin the exchange with what is current, and the span. ``body``: bytes of a request that can be sent again,
    ``None`` for any kind of stream."""
    node = party.here
    path, name = spell(method)
    host, port = target.destination(node.egress)
    now, unix = monotonic(), time()
    exchange = begin(node, scheme="grpc", host=host, port=port, method="POST", path=path, body=body, now=now, unix=unix)
    return ClientCall(party, target, name, exchange, otel_context.get_current())


class ClientCall:
    """In ``context`` the span is the current one. Safe to be ended from any thread."""

    __slots__ = (
        "_exchange",
        "_joined",
        "_lock",
        "_name",
        "_over",
        "_parent",
        "_party",
        "_point",
        "_resend",
        "_sent",
        "_span",
        "_started",
        "_target",
        "context",
    )

    def __init__(self, party: Party, target: Target, name: str, exchange: ClientExchange, parent: Context) -> None:
        self._party, self._target, self._name = party, target, name
        self._exchange, self._parent = exchange, parent
        self._lock = Lock()
        self._over = self._resend = False
        self._sent = 0
        self._point: dict[str, Any] = {semconv.RPC_SYSTEM: "grpc", semconv.RPC_METHOD: name}
        if target.address:
            self._point[semconv.SERVER_ADDRESS] = target.address
        if target.port is not None:
            self._point[semconv.SERVER_PORT] = target.port
        values = dict(self._point)
        values |= session_attributes(exchange.session_id)
        if exchange.kind is not None:
            values[semconv.FRAME_KIND] = exchange.kind
        self._started = perf_counter()
        joined = foreign_span(SpanKind.CLIENT)
        self._joined = joined is not None
        if joined is not None:
            joined.set_attributes(values)
            self._span, self.context = joined, parent
        else:
            self._span = tracer(party.tracer_provider).start_span(name, parent, SpanKind.CLIENT, values)
            self.context = trace.set_span_in_context(self._span, parent)

    def timeout(self, given: float | None) -> float | None:
        """Seconds that the call gets: what its caller says, and no more than is left for all that it is part of."""
        scope = current_scope(self._parent)
        if scope is None or scope.deadline is None:
            return given
        left = scope.deadline - monotonic()  # may be negative: with 0 a call still has the chance to be answered
        return left if given is None else min(given, left)

    @property
    def refusable(self) -> bool:
        """Whether the answer may be that the call has to be sent again."""
        return self._exchange.kind not in (None, "full")

    def sending_context(self) -> Context:
        """``context``; if the other instrumentation is loaded, it shall have no span of its own in here."""
        return self.context if OTHER not in sys.modules else otel_context.set_value(_SUPPRESS, True, self.context)

    def metadata(self, present: Iterable[Any] | None) -> Metadata:
        """The call's metadata as they go out."""
        exchange, party = self._exchange, self._party
        lines, self._sent = outgoing(present, exchange, self.context, party.here.registry)
        if exchange.kind is None:
            return lines
        if self._sent:
            count_frame(party.meter_provider, exchange.kind, "sent", self._sent)
        else:
            self._lost(_NO_ROOM)
        return lines

    def answered(
        self,
        status: str,
        details: str | None,
        trailing: Iterable[Any] | None,
        initial: Iterable[Any] | None = None,
        *,
        cancelled: bool = False,
    ) -> bool:
        """The call is over. Whether its answer is to be dropped, and :meth:`again` sent.

        ``cancelled``: by this side, which is no error. Only the first report counts; later ones wait for it and return
        what it did.
        """
        with self._lock:
            if not self._over:
                self._over = True
                self._resend = self._close(status, details, ack_lines(trailing, initial), cancelled)
                error = None if status == "OK" or cancelled or self._resend else status
                self._end(error, status)
            return self._resend

    def failed(self, error: BaseException) -> None:
        """There was no call: ``error`` was raised instead. What is no ``Exception`` is no error: somebody wanted it."""
        with self._lock:
            if self._over:
                return
            self._over = True
            self._exchange.failed()
            if isinstance(error, Exception):
                record_exception(self._span, error)
                self._end(error_type(error), None)
            else:
                self._end(None, "CANCELLED")

    def again(self) -> ClientCall:
        """The repetition, with a span of its own. This one has been ended."""
        return ClientCall(self._party, self._target, self._name, self._exchange, self._parent)

    def _close(self, status: str, details: str | None, acks: list[bytes | str], cancelled: bool) -> bool:
        exchange = self._exchange
        if (exchange.kind is not None and not self._sent) or (cancelled and not acks):
            exchange.failed()
            return False
        verdict = exchange.close(http_status(status, details), acks, monotonic(), time())
        if exchange.ack_kind is not None:
            count_frame(self._party.meter_provider, exchange.ack_kind, "received", exchange.ack_size)
        if exchange.late:
            instruments(self._party.meter_provider).late.add(1)
        if exchange.lost is not None:
            self._lost(exchange.lost)
        return verdict is Verdict.RESEND

    def _lost(self, reason: str) -> None:
        values = {semconv.REASON: sanitize.text(reason, 64)}
        events.emit(semconv.EVENT_CONTEXT_LOST, values, span=self._span, context=self._parent)

    def _end(self, error: str | None, status: str | None) -> None:
        point, values = self._point, {semconv.RESYNC: True} if self._resend else {}
        if status is not None:
            point[semconv.RPC_STATUS_CODE] = status
        if error is not None:
            point[semconv.ERROR_TYPE] = error
            self._span.set_status(StatusCode.ERROR)
        self._span.set_attributes({**point, **values})
        elapsed = perf_counter() - self._started
        instruments(self._party.meter_provider).rpc_client_duration.record(elapsed, point, self.context)
        if not self._joined:
            self._span.end()
