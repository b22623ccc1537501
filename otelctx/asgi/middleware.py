"""``ContextMiddleware``: trace and session context for any ASGI application."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any, Final, Literal

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from otelctx.asgi.entry import enter
from otelctx.asgi.http import HttpRequest
from otelctx.asgi.native import silence
from otelctx.asgi.options import Options, UntrustedTrace, options
from otelctx.asgi.types import App, Receive, Scope, Send
from otelctx.asgi.websocket import WebSocket
from otelctx.context.current import attach, detach
from otelctx.exchange.node import Node, default_node
from otelctx.telemetry.instruments import instruments

__all__ = ["EXCHANGE", "ContextMiddleware", "wrap"]

_log = logging.getLogger(__name__)

# The request's ServerExchange, for layers further in; also how a middleware knows that it is inside another.
EXCHANGE: Final = "otelctx.exchange"
_FASTAPI: Final = "fastapi.telemetry"  # FastAPI traces by itself unless this is in the scope
_STARLETTE: Final = "starlette.opentelemetry"
_HANDLERS: Final[dict[str, type[HttpRequest] | type[WebSocket]]] = {"http": HttpRequest, "websocket": WebSocket}


class ContextMiddleware:
    """Wraps ``app``: one SERVER span a request, HTTP metrics, and the session context of the caller.

    Put it outermost. Under FastAPI and Starlette, ``app.add_middleware(ContextMiddleware)`` is right; anything else is
    wrapped with :func:`wrap`. A middleware inside another one steps aside.

    - ``excluded``: paths without span and metric, exact (``/health``), prefix (``/static/*``) or glob; context still
      flows through them.
    - ``server_span``: ``"new"``, or ``"join"`` to use the span that is current when the request comes in.
    - ``native``: ``"suppress"`` the tracing that FastAPI and Starlette bring along, or ``"keep"`` it.
    - ``untrusted_trace``: ``"continue"`` the trace of an untrusted client or ``"link"`` to it from a new one; by
      default what the settings say.
    - ``metrics``: ``False`` records none.
    - ``node``, ``tracer_provider``, ``meter_provider``: instead of the process's own.

    Raises :class:`~otelctx.errors.ConfigError` for an option that means nothing.
    """

    __slots__ = ("_node", "_options", "app")

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
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self.app = app
        self._node = node
        self._options: Options = options(
            excluded=excluded,
            server_span=server_span,
            native=native,
            untrusted_trace=untrusted_trace,
            metrics=metrics,
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
        )
        if self._options.suppress:
            silence(app)
        if other := _other_instrumentor(app):
            _log.warning(
                "%s is active as well: each request gets the spans of both. Take one of them out, or use "
                "ContextMiddleware(server_span='join') inside the other",
                other,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = _HANDLERS.get(scope["type"])
        if handler is None or EXCHANGE in scope:
            await self.app(scope, receive, send)
            return
        settings = self._options
        if settings.suppress:
            scope.setdefault(_FASTAPI, None)
            scope[_STARLETTE] = True
        node = self._node or default_node()
        entry = enter(settings, node, scope)
        if node.shared is not None:
            await entry.settle()
        scope[EXCHANGE] = entry.exchange
        excluded = settings.excluded is not None and settings.excluded(scope["path"])
        request = handler(settings, scope, receive, send, entry, excluded=excluded)
        # Always, on excluded paths too: a server may give each request of a connection the Context of the first one.
        tokens = attach(request.context, entry.scope)
        try:
            await request.run(self.app)
        finally:
            detach(tokens)
            entry.exchange.close()
            if entry.scope.mistyped:
                instruments(settings.meter_provider).mistyped.add(entry.scope.mistyped)
            scope.pop(EXCHANGE, None)


def wrap(app: App, **options: Any) -> ContextMiddleware:
    """``app`` in a :class:`ContextMiddleware`; ``options`` are its own."""
    return ContextMiddleware(app, **options)


def _other_instrumentor(app: object) -> str | None:
    """Another ASGI instrumentation around or inside ``app``, if one can be seen from here."""
    for name, cls in (("fastapi", "FastAPIInstrumentor"), ("starlette", "StarletteInstrumentor")):
        module = sys.modules.get(f"opentelemetry.instrumentation.{name}")
        instrumentor = getattr(module, cls, None)
        if instrumentor is not None and getattr(instrumentor(), "is_instrumented_by_opentelemetry", False):
            return f"opentelemetry-instrumentation-{name}"
    for _ in range(32):
        if app is None:
            break
        if type(app).__module__.startswith("opentelemetry.instrumentation."):
            return type(app).__module__
        app = getattr(app, "app", None)
    return None
