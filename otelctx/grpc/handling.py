"""One inbound call: its scope, its SERVER span, its point in ``rpc.server.call.duration``, and its ack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter, time
from typing import Any, Final
from urllib.parse import unquote

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanKind, StatusCode

from otelctx import semconv
from otelctx.context.current import attach, detach
from otelctx.context.scope import Scope
from otelctx.delta.codec import from_header
from otelctx.exchange import server
from otelctx.exchange.server import ServerExchange
from otelctx.grpc.metadata import Inbound, extract
from otelctx.grpc.party import Party, foreign_span, spell
from otelctx.grpc.status import SERVER_ERRORS
from otelctx.telemetry import events
from otelctx.telemetry.events import enter_server_span
from otelctx.telemetry.http import count_frame, record_exception
from otelctx.telemetry.instruments import instruments, tracer
from otelctx.telemetry.session import session_attributes

__all__ = ["ServerCall", "peer_of"]

_BAGGAGE: Final = "baggage"
_ENDLESS: Final = 1e8  # seconds: grpcio has a date far away for calls without a deadline


def peer_of(text: str) -> tuple[str | None, int | None]:
    """Address and port in what gRPC calls a peer: ``ipv4:10.0.0.1:1234``, ``ipv6:%5B::1%5D:1234``; nothing of a
    socket."""
    kind, _, rest = text.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None, None
    host, _, port = unquote(rest.split(",")[0]).rpartition(":")
    return host.strip("[]").partition("%")[0] or None, int(port) if port.isdecimal() else None


class ServerCall:
    """A shell drives it: ``settle``, if it can wait, then ``begin``, the handler ``entered``, ``ack``, ``end``."""

    __slots__ = (
        "_acked",
        "_ended",
        "_exchange",
        "_inbound",
        "_joined",
        "_name",
        "_party",
        "_peer",
        "_span",
        "_started",
        "context",
    )

    def __init__(self, party: Party, method: str, metadata: Any, peer: str, *, may_wait: bool = False) -> None:
        self._started = perf_counter()
        self._party = party
        self._name = spell(method)[1]
        self._peer = peer_of(peer)
        self._inbound = inbound = Inbound(metadata)
        baggage = inbound.joined(_BAGGAGE)
        self._exchange: ServerExchange = server.open(
            party.here,
            lines=inbound.lines(semconv.FRAME_METADATA),
            baggage=baggage,
            client=self._peer[0],
            forwarded=inbound.joined("x-forwarded-for"),
            now=time(),
            may_wait=may_wait,
        )
        if baggage is not None and self._exchange.baggage != baggage:
            inbound.replace_baggage(self._exchange.baggage)
        self._ended = self._acked = self._joined = False
        self._span: Span = INVALID_SPAN
        self.context = Context()

    async def settle(self) -> None:
        """Let the shared tier have its say."""
        await self._exchange.settle()

    @property
    def scope(self) -> Scope:
        return self._exchange.scope

    @property
    def refused(self) -> bool:
        return self._exchange.outcome == "refuse"

    def limit(self, left: float | None) -> None:
        """The call has so many seconds left, by gRPC's own deadline; without one there are none or very many."""
        if left is not None and left < _ENDLESS:
            self._exchange.scope.limit(monotonic() + left)

    def begin(self) -> None:
        """Start the span, or join that of another instrumentation, which is then the current one."""
        party, exchange = self._party, self._exchange
        values = self._attributes()
        joined = foreign_span(SpanKind.SERVER)
        if joined is not None:
            self._joined, self._span = True, joined
            joined.set_attributes(values)
            parent = extract(self._inbound)
        else:
            parent, links = self._parent()
            self._span = tracer(party.tracer_provider).start_span(self._name, parent, SpanKind.SERVER, values, links)
        self.context = enter_server_span(parent, self._span)
        if exchange.kind is not None:
            size = sum(map(len, self._inbound.lines(semconv.FRAME_METADATA)))
            count_frame(party.meter_provider, exchange.kind, "received", size)
        if exchange.event is not None:
            reason = {semconv.REASON: exchange.reason or "unknown"}
            events.emit(exchange.event, reason, span=self._span, context=self.context)

    def _parent(self) -> tuple[Context, list[Link] | None]:
        context = extract(self._inbound)
        if not self._exchange.trusted and self._party.here.settings.untrusted_trace == "link":
            remote = trace.get_current_span(context).get_span_context()
            if remote.is_valid:
                return trace.set_span_in_context(INVALID_SPAN, context), [Link(remote)]
        return context, None

    def _attributes(self) -> dict[str, Any]:
        exchange, scope = self._exchange, self._exchange.scope
        values: dict[str, Any] = {semconv.RPC_SYSTEM: "grpc", semconv.RPC_METHOD: self._name, **self._session()}
        address, port = self._peer
        if address is not None:
            values[semconv.NETWORK_PEER_ADDRESS] = address
        if port is not None:
            values[semconv.NETWORK_PEER_PORT] = port
        if exchange.client is not None:
            values[semconv.CLIENT_ADDRESS] = exchange.client
        if scope.source != "none":
            values[semconv.CONTEXT_SOURCE] = scope.source
        if scope.incomplete:
            values[semconv.CONTEXT_INCOMPLETE] = True
        if (kind := exchange.kind) is not None:
            values[semconv.FRAME_KIND] = kind
        if self.refused:
            values[semconv.RESYNC] = True
        return values

    def _session(self) -> dict[str, Any]:
        return session_attributes(self._exchange.scope.state.session_id)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The handler runs in here: as a whole, or for each message of a stream."""
        tokens = attach(self.context, self._exchange.scope)
        try:
            yield
        finally:
            detach(tokens)

    def ack(self) -> bytes | None:
        """What answers the frame, once the handler is done; ``None`` the second time, or if there is no answer."""
        exchange = self._exchange
        if self._acked:
            return None
        self._acked = True
        value = exchange.last_ack(time())
        if value is None:
            return None
        data = from_header(value)
        count_frame(self._party.meter_provider, exchange.ack_kind, "sent", len(data))
        return data

    def end(self, status: str, error: BaseException | None = None) -> None:
        """The handler is done: end span and scope. Only the first call counts.

        ``error`` was raised by the handler, and is none of gRPC's ways to end a call.
        """
        if self._ended:
            return
        self._ended = True
        span, point = self._span, {semconv.RPC_SYSTEM: "grpc", semconv.RPC_METHOD: self._name}
        point[semconv.RPC_STATUS_CODE] = status
        if error is not None:
            record_exception(span, error)
        if status in SERVER_ERRORS:
            point[semconv.ERROR_TYPE] = status
            span.set_status(StatusCode.ERROR)
        span.set_attributes({**point, **self._session()})
        elapsed = perf_counter() - self._started
        instruments(self._party.meter_provider).rpc_server_duration.record(elapsed, point, self.context)
        if not self._joined:
            span.end()
        self._exchange.close()
