"""``ContextMiddleware``: trace and session context for any ASGI application."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from sys import modules
from typing import Any, Final, Literal

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from otelctx.asgi.answer import respond
from otelctx.asgi.entry import Entry
from otelctx.asgi.flush import flushing
from otelctx.asgi.http import HttpRequest, begin
from otelctx.asgi.native import silence
from otelctx.asgi.options import Options, UntrustedTrace, options
from otelctx.asgi.others import CONTRIB, STARLETTE, arrange, other_instrumentor, outside
from otelctx.asgi.passing import EXCHANGE, Head, exchange_of, passing
from otelctx.asgi.quiet import Quiet
from otelctx.asgi.types import App, Receive, Scope, Send
from otelctx.asgi.websocket import WebSocket
from otelctx.context.current import enter_binding, enter_context, leave
from otelctx.exchange.node import Node, default_node
from otelctx.telemetry.failure import broken
from otelctx.telemetry.instruments import instruments
from otelctx.telemetry.sinks import Outlet, Sinks

__all__ = ["ContextMiddleware", "exchange_of", "wrap"]

_log = logging.getLogger(__name__)

_FASTAPI: Final = "fastapi.telemetry"  # FastAPI traces by itself unless this is in the scope
Request = HttpRequest | Quiet | WebSocket
_HANDLERS: Final[dict[str, Callable[..., Request]]] = {"http": begin, "websocket": WebSocket}


class ContextMiddleware:
    """Wraps ``app``: one SERVER span a request, HTTP metrics, and the session context of the caller.

    Put it outermost. Under FastAPI and Starlette, ``app.add_middleware(ContextMiddleware)`` is right; anything else is
    wrapped with :func:`wrap`. A middleware inside another one steps aside.

    - ``excluded``: paths without span and metric, exact (``/health``), prefix (``/static/*``) or glob; context still
      flows through them.
    - ``server_span``: ``"new"``, or ``"join"`` to use the span that is current when the request comes in. Around us,
      OpenTelemetry's own ASGI instrumentation is joined by itself; inside, it steps aside.
    - ``native``: ``"suppress"`` the tracing that FastAPI and Starlette bring along, or ``"keep"`` it.
    - ``untrusted_trace``: ``"continue"`` the trace of an untrusted client or ``"link"`` to it from a new one; by
      default what the settings say.
    - ``metrics``: ``False`` records none.
    - ``capture_request_headers``, ``capture_response_headers``: names of headers, or beginnings of them with ``*``
      after, that become ``http.request.header.…`` and ``http.response.header.…``; credentials are ``[REDACTED]``.
    - ``body_sizes``: ``True`` counts the bytes of bodies, for span and histograms.
    - ``metric_hosts``: hosts, as in the Host header, whose ``server.address`` and ``server.port`` are on metrics.
    - ``node``, ``tracer_provider``, ``meter_provider``: instead of the process's own.

    Raises :class:`~otelctx.errors.ConfigError` for an option that means nothing, and for settings in the environment
    that do.
    """

    __slots__ = ("_joined", "_node", "_options", "_outlet", "app")

    def __init__(
        self,
        app: App,
        *,
        node: Node | None = None,
        excluded: str | Iterable[str] = (),
        server_span: Literal["new", "join"] = "new",
        native: Literal["suppress", "keep"] = "suppress",
        untrusted_trace: UntrustedTrace | None = None,
        metrics: bool = True,
        capture_request_headers: str | Iterable[str] = (),
        capture_response_headers: str | Iterable[str] = (),
        body_sizes: bool = False,
        metric_hosts: str | Iterable[str] = (),
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self.app = app
        self._node = node
        if node is None:
            default_node()  # an environment that is wrong is reported here, and not by each request
        self._options: Options = options(
            excluded=excluded,
            server_span=server_span,
            native=native,
            untrusted_trace=untrusted_trace,
            metrics=metrics,
            capture_request_headers=capture_request_headers,
            capture_response_headers=capture_response_headers,
            body_sizes=body_sizes,
            metric_hosts=metric_hosts,
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
        )
        self._outlet = Outlet(tracer_provider, meter_provider, metrics=metrics)
        if self._options.suppress:
            silence(app)
        self._joined = replace(self._options, join=True, outer=True)
        arrange(EXCHANGE)
        if other := other_instrumentor(app):
            _log.warning(
                "%s is active as well. A request gets one SERVER span: ours where we are outside, the other one where "
                "that is. One of the two is enough: see docs/auto.md",
                other,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if EXCHANGE in scope or scope["type"] not in _HANDLERS:
            await self._aside(scope, receive, send)
            return
        settings = self._options
        if CONTRIB in modules or STARLETTE in scope:
            settings = self._beside(scope)
        if settings.suppress:
            scope.setdefault(_FASTAPI, None)
            scope[STARLETTE] = True
        node = self._node or default_node()
        excluded = settings.excluded
        sinks = None if excluded is not None and excluded(scope["path"]) else self._outlet.fixed or self._outlet.now()
        context = passing(settings, node, scope, sinks) if sinks is None or sinks.passes else None
        request: Request | None = None
        if context is not None:
            binding = scope[EXCHANGE]
            head = Head(send)
            answer: Send = head.send
        else:
            sinks = _wanted(settings, scope, sinks)
            entry = Entry(settings, node, scope, sinks is None)
            if node.shared is not None:
                await entry.settle()
            request = _begin(settings, scope, receive, send, entry, sinks)
            scope[EXCHANGE] = entry.exchange
            context, binding, receive, answer = request.context, entry.binding, request.receive, request.send
        # Always: a server may give each request of a connection the Context of the first one.
        outer, before = enter_context(context), enter_binding(binding)
        try:
            if request is None or entry.exchange.outcome == "none":
                await self.app(scope, receive, answer)
            else:
                await self._told(settings, scope, entry, request)
        except BaseException as error:
            said = request.failed(error) if request is not None else head.failed(error)
            if said is None:
                raise
            await respond(answer, *said)
        finally:
            if request is not None:
                request.close()
            leave(outer, before)
            scope.pop(EXCHANGE, None)
            if request is not None:
                _over(settings, entry)
            else:
                binding.closed = True
                if binding.made is not None:
                    binding.close(settings.meter_provider)

    async def _aside(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What is not ours to record: a lifespan, a scope of a type to come, a request that is inside of another."""
        if scope["type"] not in _HANDLERS:
            arrange(EXCHANGE)  # a lifespan comes before all requests: what has been loaded by now is in time
            if scope["type"] == "lifespan":
                send = flushing(scope, send)
        await self.app(scope, receive, send)

    async def _told(self, settings: Options, scope: Scope, entry: Entry, request: Request) -> None:
        """The rest of a request with a frame."""
        try:
            entry.report(settings, request.span, request.context)
        except Exception as error:  # a log processor's
            broken("an event", error)
        if entry.exchange.outcome == "refuse":
            await request.refuse()
        else:
            await self.app(scope, request.receive, request.send)

    def _beside(self, scope: Scope) -> Options:
        arrange(EXCHANGE)
        return self._joined if outside(scope, native=self._options.suppress) else self._options


def _wanted(settings: Options, scope: Scope, sinks: Sinks | None) -> Sinks | None:
    """``sinks`` if anybody keeps any of this request's telemetry."""
    if sinks is None or not sinks.deaf or settings.join:
        return sinks
    # A websocket has no point in any metric.
    return None if sinks.mute or scope["type"] == "websocket" else sinks


def _begin(settings: Options, scope: Scope, receive: Receive, send: Send, entry: Entry, sinks: Sinks | None) -> Request:
    begin = _HANDLERS[scope["type"]]
    try:
        return begin(settings, scope, receive, send, entry, sinks)
    except Exception as error:  # a sampler's, a span processor's: anybody's code
        broken("the start of a request's telemetry", error)
        return begin(settings, scope, receive, send, entry, None)


def _over(settings: Options, entry: Entry) -> None:
    entry.exchange.close()
    if entry.scope.mistyped:
        instruments(settings.meter_provider).mistyped.add(entry.scope.mistyped)


def wrap(app: App, **options: Any) -> ContextMiddleware:
    """``app`` in a :class:`ContextMiddleware`; ``options`` are its own."""
    return ContextMiddleware(app, **options)
