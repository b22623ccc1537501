"""``ContextMiddleware``: trace and session context for any ASGI application."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
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
from otelctx.asgi.quiet import Quiet
from otelctx.asgi.types import App, Receive, Scope, Send
from otelctx.asgi.websocket import WebSocket
from otelctx.context.current import attach_bound, detach
from otelctx.exchange.node import Node, default_node
from otelctx.telemetry.instruments import Sinks, instruments, sinks

__all__ = ["EXCHANGE", "ContextMiddleware", "wrap"]

_log = logging.getLogger(__name__)

# The request's ServerExchange, for layers further in; also how a middleware knows that it is inside another.
EXCHANGE: Final = "otelctx.exchange"
_FASTAPI: Final = "fastapi.telemetry"  # FastAPI traces by itself unless this is in the scope
_HANDLERS: Final[dict[str, Callable[..., HttpRequest | Quiet | WebSocket]]] = {"http": begin, "websocket": WebSocket}


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

    __slots__ = ("_joined", "_node", "_options", "app")

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
        handler = _HANDLERS.get(scope["type"])
        if handler is None or EXCHANGE in scope:
            if handler is None:
                arrange(EXCHANGE)  # a lifespan comes before all requests: what has been loaded by now is in time
                if scope["type"] == "lifespan":
                    send = flushing(scope, send)
            await self.app(scope, receive, send)
            return
        settings = self._options
        if CONTRIB in sys.modules or STARLETTE in scope:
            settings = self._beside(scope)
        if settings.suppress:
            scope.setdefault(_FASTAPI, None)
            scope[STARLETTE] = True
        node = self._node or default_node()
        recorder = _recorder(settings, scope)
        entry = Entry(settings, node, scope, recorder is None)
        if node.shared is not None:
            await entry.settle()
        scope[EXCHANGE] = exchange = entry.exchange
        request = handler(settings, scope, receive, send, entry, recorder)
        # Always, on excluded paths too: a server may give each request of a connection the Context of the first one.
        tokens = attach_bound(request.context, entry.binding)
        try:
            try:
                if exchange.outcome != "none":
                    entry.report(settings, request.span, request.context)
                if exchange.outcome == "refuse":
                    await request.refuse()
                else:
                    await self.app(scope, request.receive, request.send)
            except BaseException as error:
                if (answer := request.failed(error)) is None:
                    raise
                await respond(request.send, *answer)
            finally:
                request.close()
        finally:
            detach(tokens)
            exchange.close()
            if entry.scope.mistyped:
                instruments(settings.meter_provider).mistyped.add(entry.scope.mistyped)
            scope.pop(EXCHANGE, None)

    def _beside(self, scope: Scope) -> Options:
        arrange(EXCHANGE)
        return self._joined if outside(scope, native=self._options.suppress) else self._options


def _recorder(settings: Options, scope: Scope) -> Sinks | None:
    """Where this request's telemetry goes; ``None`` if its path is excluded or nobody would keep any."""
    if settings.excluded is not None and settings.excluded(scope["path"]):
        return None
    found = sinks(settings.tracer_provider, settings.meter_provider)
    # A websocket has no point in any metric.
    if found.deaf and (found.mute or not settings.metrics or scope["type"] == "websocket") and not settings.join:
        return None
    return found


def wrap(app: App, **options: Any) -> ContextMiddleware:
    """``app`` in a :class:`ContextMiddleware`; ``options`` are its own."""
    return ContextMiddleware(app, **options)
