"""A request that brings nothing of ours and of which nothing is recorded, as are all where there is no SDK.

Nearly always nobody asks for any of it, so it is found out and made once somebody does. Until then a request is one
:class:`Passing` and one Context.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, cast

from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, SpanContext, SpanKind, Tracer

from otelctx.asgi.answer import Answer, answer_to
from otelctx.asgi.headers import FORWARDED, TRACEPARENT, passable, without_ours
from otelctx.asgi.options import Options
from otelctx.asgi.stream import START, TRAILERS
from otelctx.asgi.types import Message, Scope, Send
from otelctx.context.current import BINDING_KEY, Binding
from otelctx.exchange import server
from otelctx.exchange.node import Node
from otelctx.exchange.server import ServerExchange
from otelctx.exchange.w3c import Remote, known
from otelctx.telemetry.events import SERVER_SPAN, SPAN_KEY
from otelctx.telemetry.failure import start
from otelctx.telemetry.http import method_names
from otelctx.telemetry.instruments import instruments
from otelctx.telemetry.sinks import Sinks

__all__ = ["EXCHANGE", "Head", "Passing", "exchange_of", "passing"]

# The request's exchange, in its ASGI scope; also how a middleware knows that it is inside another.
EXCHANGE: Final = "otelctx.exchange"

_new: Final = object.__new__
_MADE: Final = "made"
_CONTEXT: Final = "_context"


class Passing(Binding, NonRecordingSpan):
    """One such request: what the Context has as its scope, and as its span if there is one, and what the ASGI scope has
    as its exchange. One exchange, with one scope, is made for all of its tasks and threads with the first use of
    either; the span's ids are read, or drawn, with the first use of these.
    """

    __slots__ = ("_forwarded", "_method", "_node", "_parent", "_peer", "_tracer", "closed")
    overlays = ()
    _seen = None
    made: ServerExchange | None = None  # gets into the object's dict, as the span's ids do; most have none
    closed: bool
    _forwarded: bytes | None
    _method: str
    _node: Node
    _parent: bytes | None
    _peer: Any
    _tracer: Tracer | None  # of a span that its sampler drops

    # as a binding

    def __getattr__(self, name: str) -> Any:
        if name != "scope":  # the one thing that is made when it is missed
            raise AttributeError(name)
        return self.exchange().scope

    def exchange(self) -> ServerExchange:
        """The request's exchange. Always the same."""
        if (made := self.made) is not None:
            return made
        peer, forwarded = self._peer, self._forwarded
        client = peer[0] if peer else None
        plain = server.plain(self._node, client, None if forwarded is None else forwarded.decode("latin-1"))
        # One step of the interpreter: who else is making one just now gets the same.
        exchange = cast("ServerExchange", self.__dict__.setdefault(_MADE, plain))
        self.scope = exchange.scope
        if self.closed:
            exchange.close()
        return exchange

    def close(self, meter_provider: MeterProvider | None) -> None:
        """The application has returned, and there is an exchange."""
        exchange = self.exchange()
        exchange.close()
        if mistyped := exchange.scope.mistyped:
            instruments(meter_provider).mistyped.add(mistyped)

    # as a span

    def get_span_context(self) -> SpanContext:
        found = self.__dict__.get(_CONTEXT)
        if found is None:
            found = self.__dict__.setdefault(_CONTEXT, self._ids())
        return cast("SpanContext", found)

    def _ids(self) -> SpanContext:
        tracer, parent = self._tracer, None if self._parent is None else Remote(self._parent)
        if tracer is None:
            return INVALID_SPAN_CONTEXT if parent is None else parent.get_span_context()
        context = Context() if parent is None else Context({SPAN_KEY: parent})
        return start(tracer, method_names(self._method)[1], context, SpanKind.SERVER).get_span_context()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is one of the span: it may go where nothing else of the request can, into another process for one."""
        return NonRecordingSpan, (self.get_span_context(),)

    def __repr__(self) -> str:
        return f"NonRecordingSpan({self.get_span_context()!r})"


class Head:
    """``send`` of such a request: takes headers of ours out, and knows whether there is an answer. Apart from the rest,
    since who keeps the Context must not keep the server's connection by it."""

    __slots__ = ("_send", "_started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = False

    def send(self, message: Message) -> Awaitable[None]:
        kind = message["type"]
        if kind == START:
            self._started = True
            message = without_ours(message)
        elif kind == TRAILERS:
            message = without_ours(message)
        return self._send(message)

    def failed(self, error: BaseException) -> Answer | None:
        """What to answer in the application's stead."""
        return None if self._started else answer_to(error)


def passing(options: Options, node: Node, scope: Scope, sinks: Sinks | None) -> Context | None:
    """The Context of the request ``scope``, in which its :class:`Passing` is then; ``None`` if it is not such a one.

    ``sinks``: where its span would go if it were kept, which it is not; ``None``: it has none, since its path is
    excluded.
    """
    raw = scope["headers"]
    if type(raw) is not list or options.join or scope["type"] != "http":
        return None
    parent = forwarded = None
    for name, value in raw:
        if name not in passable:
            if name == TRACEPARENT and parent is None:
                parent = value
            elif name == FORWARDED and forwarded is None:
                forwarded = value
            else:
                return None
    if not known().is_w3c or (
        parent is not None and (options.untrusted_trace or node.settings.untrusted_trace) == "link"
    ):
        return None
    made = _new(Passing)
    made.closed = False
    made._node = node
    made._parent = parent
    made._forwarded = forwarded
    made._peer = scope.get("client")
    if sinks is None or sinks.deaf:
        made._tracer = None
        context = Context({BINDING_KEY: made} if parent is None else {SPAN_KEY: made, BINDING_KEY: made})
    else:
        made._tracer, made._method = sinks.tracer, scope["method"]
        context = Context({SPAN_KEY: made, SERVER_SPAN: made, BINDING_KEY: made})
    scope[EXCHANGE] = made
    return context


def exchange_of(scope: Scope) -> ServerExchange | None:
    """The exchange of the request ``scope``, for layers further in; ``None`` outside of a ``ContextMiddleware``."""
    found = scope.get(EXCHANGE)
    return found.exchange() if type(found) is Passing else found
