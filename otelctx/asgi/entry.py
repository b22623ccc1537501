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
from otelctx.asgi.headers import Inbound, extract, read
from otelctx.asgi.options import Options
from otelctx.asgi.types import Headers, Scope
from otelctx.context.current import BINDING_KEY, Binding
from otelctx.context.scope import Scope as ContextScope
from otelctx.exchange import server
from otelctx.exchange.node import Node
from otelctx.exchange.server import ServerExchange
from otelctx.telemetry import events
from otelctx.telemetry.events import SERVER_SPAN, SPAN_KEY
from otelctx.telemetry.http import count_frame

__all__ = ["Entry", "enter"]

_FRAME: Final = semconv.HEADER.encode()
_FIRST: Final = (_FRAME[:1], _FRAME[:1].upper())
_BAGGAGE: Final = b"baggage"
_ACK: Final = semconv.ACK_HEADER.encode()
_FORWARDED: Final = b"x-forwarded-for"
_TIMEOUT: Final = semconv.TIMEOUT_HEADER.encode()


class Entry:
    """``context`` is the parent Context, made from the request alone; ``scope`` what the application shall see."""

    __slots__ = ("binding", "client", "context", "exchange", "inbound", "links", "scope")

    def __init__(
        self,
        inbound: Inbound,
        exchange: ServerExchange,
        context: Context,
        links: Sequence[Link] | None,
        client: str | None,
    ) -> None:
        self.inbound = inbound
        self.exchange = exchange
        self.scope: ContextScope = exchange.scope
        self.binding = Binding(exchange.scope)
        self.context = context
        self.links = links
        self.client = client

    @property
    def refused(self) -> bool:
        return self.exchange.outcome == "refuse"

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

    def session(self) -> dict[str, Any]:
        """``session.id``, as it is now."""
        session_id = self.scope.state.session_id
        return {} if session_id is None else {semconv.SESSION_ID_ATTRIBUTE: session_id}

    def describe(self, attributes: dict[str, Any]) -> None:
        """Add what the SERVER span says of the context that came in."""
        exchange = self.exchange
        scope = self.scope
        if exchange.outcome == "none" and scope.source == "none":
            return
        attributes.update(self.session())
        if scope.source != "none":
            attributes[semconv.CONTEXT_SOURCE] = scope.source
        if scope.incomplete:
            attributes[semconv.CONTEXT_INCOMPLETE] = True
        if (kind := exchange.kind) is not None:
            attributes[semconv.FRAME_KIND] = kind
        if self.refused:
            attributes[semconv.RESYNC] = True

    def report(self, options: Options, span: Span | None, context: Context) -> None:
        """Count the frame that came, and tell what is not as it should be."""
        exchange = self.exchange
        line = self.inbound.get(_FRAME) or b""
        if exchange.kind is not None:
            count_frame(options.meter_provider, exchange.kind, "received", len(line))
        if exchange.event is not None:
            events.emit(exchange.event, {semconv.REASON: exchange.reason or "unknown"}, span=span, context=context)

    def head(self, options: Options, method: str, headers: Headers) -> Headers:
        """Response headers as they go out: ours instead of any that the application has set."""
        if self.exchange.outcome == "refuse":  # written by the exchange itself
            size = sum(len(value) for name, value in headers if name == _ACK)
            count_frame(options.meter_provider, self.exchange.ack_kind, "sent", size)
            return headers
        for name, _ in headers:
            if name[:1] in _FIRST and name[: len(_FRAME)].lower() == _FRAME:
                headers = [line for line in headers if line[0][: len(_FRAME)].lower() != _FRAME]
                break
        if self.exchange.outcome == "none":
            return headers
        ack = self.exchange.ack(method, headers)
        if ack is None:
            return headers
        count_frame(options.meter_provider, self.exchange.ack_kind, "sent", len(ack))
        return [*headers, (_ACK, ack)]


def enter(options: Options, node: Node, scope: Scope) -> Entry:
    """Read the request's headers, take ours out of ``scope``, and decide what to believe."""
    inbound = read(scope["headers"])
    if inbound.ours:
        scope["headers"] = inbound.rest()
    peer = scope.get("client")
    client = peer[0] if peer else None
    baggage = inbound.joined(_BAGGAGE) if inbound.get(_BAGGAGE) is not None else None
    forwarded = inbound.joined(_FORWARDED) if inbound.get(_FORWARDED) is not None else None
    if baggage is None and not inbound.ours:
        exchange = server.plain(node, client, forwarded, time())
    else:
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
    context = _outer(baggage, exchange.baggage) if options.join else extract(inbound)
    links = None
    if not exchange.trusted and not options.join and _links(options, node):
        remote = trace.get_current_span(context).get_span_context()
        if remote.is_valid:
            links = [Link(remote)]
            context = trace.set_span_in_context(INVALID_SPAN, context)
    return Entry(inbound, exchange, context, links, exchange.client)


def _outer(came: str | None, kept: str | None) -> Context:
    """The current Context. Whoever has filled it knew nothing of our keys in the baggage that ``came``."""
    context = otel_context.get_current()
    if came != kept:
        for name in _names(came) - _names(kept):
            context = otel_baggage.remove_baggage(name, context)
    return context


def _names(baggage: str | None) -> set[str]:
    return {member.partition("=")[0].strip() for member in (baggage or "").split(",")}


def _with_baggage(headers: Headers, value: str | None) -> Headers:
    kept = [line for line in headers if line[0].lower() != _BAGGAGE]
    return kept if not value else [*kept, (_BAGGAGE, value.encode("latin-1", "replace"))]


def _links(options: Options, node: Node) -> bool:
    return (options.untrusted_trace or node.settings.untrusted_trace) == "link"
