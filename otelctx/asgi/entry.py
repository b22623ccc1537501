"""What a request brings in: its scope, its parent span, its baggage. Read before anything else happens."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, time
from typing import Any, Final

from opentelemetry import baggage as otel_baggage
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, Span

import otelctx.semconv as semconv
from otelctx.asgi.headers import FORWARDED, Inbound, extract, remote, without_ours
from otelctx.asgi.options import Options
from otelctx.asgi.types import Headers, Message, Scope
from otelctx.context.current import BINDING_KEY, Binding
from otelctx.context.scope import Scope as ContextScope
from otelctx.delta.baggage import decoded
from otelctx.exchange import server
from otelctx.exchange.node import Node
from otelctx.exchange.server import ServerExchange
from otelctx.telemetry import events
from otelctx.telemetry.events import SERVER_SPAN, SPAN_KEY
from otelctx.telemetry.http import count_frame
from otelctx.telemetry.session import session_attributes

__all__ = ["Entry"]

_FRAME: Final = semconv.HEADER.encode()
_BAGGAGE: Final = b"baggage"
_ACK: Final = semconv.ACK_HEADER.encode()
_TIMEOUT: Final = semconv.TIMEOUT_HEADER.encode()


class Entry:
    """``context`` is the parent Context, made from the request alone; ``scope`` what the application shall see.
    ``told``: there may be more to say of what came than that it was nothing.
    """

    __slots__ = ("binding", "client", "context", "exchange", "inbound", "links", "scope", "told")

    def __init__(self, options: Options, node: Node, scope: Scope, quiet: bool) -> None:
        """Reads the request's headers, takes ours out of ``scope``, and decides what to believe. ``quiet``: nothing is
        recorded of it."""
        raw = scope["headers"]
        if type(raw) is not list:  # ASGI has any iterable, also one that is good for a single look
            raw = scope["headers"] = list(raw)
        self.inbound = inbound = Inbound(raw)
        peer = scope.get("client")
        client = peer[0] if peer else None
        forwarded = inbound.joined(FORWARDED) if FORWARDED in inbound.first else None
        self.told = inbound.ours or _BAGGAGE in inbound.first
        if self.told:
            self.exchange, self.context = _carried(options, node, scope, inbound, client, forwarded)
        else:
            self.exchange = server.plain(node, client, forwarded)
            if options.join:
                self.context = otel_context.get_current()
            else:
                self.context = remote(inbound) if quiet else extract(inbound)
        self.scope: ContextScope = self.exchange.scope
        self.binding = Binding(self.scope)
        self.client = self.exchange.client
        self.links: Sequence[Link] = ()
        if not (self.exchange.trusted or options.join) and (
            (options.untrusted_trace or node.settings.untrusted_trace) == "link"
        ):
            self._unlink()

    def _unlink(self) -> None:
        """Begin a new trace, with a link to the one that came."""
        remote = trace.get_current_span(self.context).get_span_context()
        if remote.is_valid:
            self.links = [Link(remote)]
            self.context = trace.set_span_in_context(INVALID_SPAN, self.context)

    async def settle(self) -> None:
        """Let the shared tier have its say, before anything is told of the request."""
        await self.exchange.settle()
        self.scope = self.exchange.scope
        self.binding = Binding(self.scope)

    def inside(self, span: Span | None) -> Context:
        """The Context for the application: what came, our scope, and ``span`` as the current and the SERVER span."""
        if span is None:
            return Context({**self.context, BINDING_KEY: self.binding})
        return Context({**self.context, SPAN_KEY: span, SERVER_SPAN: span, BINDING_KEY: self.binding})

    def describe(self, attributes: dict[str, Any]) -> None:
        """Add what the SERVER span says of the context that came in."""
        exchange = self.exchange
        scope = self.scope
        attributes.update(session_attributes(scope.state.session_id))
        if scope.source != "none":
            attributes[semconv.CONTEXT_SOURCE] = scope.source
        if scope.incomplete:
            attributes[semconv.CONTEXT_INCOMPLETE] = True
        if (kind := exchange.kind) is not None:
            attributes[semconv.FRAME_KIND] = kind
        if exchange.outcome == "refuse":
            attributes[semconv.RESYNC] = True

    def report(self, options: Options, span: Span | None, context: Context) -> None:
        """Count the frame that came, and tell what is not as it should be."""
        exchange = self.exchange
        line = self.inbound.get(_FRAME) or b""
        if exchange.kind is not None:
            count_frame(options.meter_provider, exchange.kind, "received", len(line))
        if exchange.event is not None:
            events.emit(exchange.event, {semconv.REASON: exchange.reason or "unknown"}, span=span, context=context)

    def head(self, options: Options, method: str, message: Message) -> Message:
        """The head of the response as it goes out: with headers of ours instead of any that the application has set."""
        outcome = self.exchange.outcome
        if outcome != "refuse":  # that one is written by the exchange itself
            message = without_ours(message)
        if outcome == "none":
            return message
        given = message["headers"]
        headers = self._acked(options, method, given)
        return message if headers is given else {**message, "headers": headers}

    def _acked(self, options: Options, method: str, headers: Headers) -> Headers:
        if self.exchange.outcome == "refuse":
            size = sum(len(value) for name, value in headers if name == _ACK)
        elif (ack := self.exchange.ack(method, headers, time())) is not None:
            headers, size = [*headers, (_ACK, ack)], len(ack)
        else:
            return headers
        count_frame(options.meter_provider, self.exchange.ack_kind, "sent", size)
        return headers


def _carried(
    options: Options, node: Node, scope: Scope, inbound: Inbound, client: str | None, forwarded: str | None
) -> tuple[ServerExchange, Context]:
    """The exchange and the parent Context of a request that carries context of ours, or baggage."""
    if inbound.ours:
        scope["headers"] = inbound.rest()
    baggage = inbound.joined(_BAGGAGE)
    exchange = server.open(
        node,
        lines=inbound.lines(_FRAME),
        baggage=baggage,
        client=client,
        forwarded=forwarded,
        now=time(),
        may_wait=True,
    )
    if inbound.ours and (left := inbound.lines(_TIMEOUT)):
        exchange.limit(left, monotonic())
    if baggage is not None and exchange.baggage != baggage:
        # Our keys are in the scope now. Left where they were, the application's next call would pass them on to anyone.
        inbound.replace_baggage(exchange.baggage)
        scope["headers"] = _with_baggage(scope["headers"], exchange.baggage)
    return exchange, _outer(baggage, exchange.baggage) if options.join else extract(inbound)


def _outer(came: str | None, kept: str | None) -> Context:
    """The current Context. Whoever has filled it knew nothing of our keys in the baggage that ``came``."""
    context = otel_context.get_current()
    if came != kept:
        for name in _names(came) - _names(kept):
            context = otel_baggage.remove_baggage(name, context)
    return context


def _names(baggage: str | None) -> set[str]:
    return {decoded(member.partition("=")[0].strip()) for member in (baggage or "").split(",")}


def _with_baggage(headers: Headers, value: str | None) -> Headers:
    kept = [line for line in headers if line[0].lower() != _BAGGAGE]
    return kept if not value else [*kept, (_BAGGAGE, value.encode("latin-1", "replace"))]
