"""Another ASGI instrumentation in the same stack, so that a request has one SERVER span all the same.

opentelemetry-instrumentation-asgi has one middleware, on which those of FastAPI and Starlette stand. It knows one way
to be kept quiet, a key in the Context, which would silence the instrumented clients of the application as well. So its
``__call__`` is given two lines more, once it is loaded: inside of a request of ours it steps aside; and around us it
leaves word in the scope, so that we know that the current span is of this request. The Context alone does not tell:
servers may run a request in that of the one before. Starlette's own middleware leaves such a word by itself.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any, Final

from opentelemetry import trace

from otelctx.asgi.types import Receive, Scope, Send

__all__ = ["CONTRIB", "STARLETTE", "arrange", "other_instrumentor", "outside"]

CONTRIB: Final = "opentelemetry.instrumentation.asgi"
STARLETTE: Final = "starlette.opentelemetry"
_CLASS: Final = "OpenTelemetryMiddleware"
_ARRANGED: Final = "_otelctx_arranged"
_BEFORE: Final = "otelctx.span_before"  # the span that was current when the other middleware got the request
_MAX_DEPTH: Final = 32
_INSTRUMENTORS: Final = (("fastapi", "FastAPIInstrumentor"), ("starlette", "StarletteInstrumentor"))


def arrange(ours: str) -> None:
    """Let the other middleware step aside where ``ours`` is in the scope. Does nothing unless it is loaded, and nothing
    a second time."""
    cls: Any = getattr(sys.modules.get(CONTRIB), _CLASS, None)
    if cls is None or hasattr(cls, _ARRANGED):
        return
    call = cls.__call__

    @wraps(call)
    async def arranged(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
        if ours in scope:
            await self.app(scope, receive, send)
            return
        scope[_BEFORE] = trace.get_current_span()
        await call(self, scope, receive, send)

    setattr(cls, _ARRANGED, True)
    cls.__call__ = arranged


def outside(scope: Scope, *, native: bool) -> bool:
    """Whether another middleware has a span around this request; for an excluded path it has none. ``native``: asked of
    Starlette's own as well.
    """
    if _BEFORE in scope:
        return trace.get_current_span() is not scope[_BEFORE]
    if not native or STARLETTE not in scope:
        return False
    scope_of_span = getattr(trace.get_current_span(), "instrumentation_scope", None)
    return getattr(scope_of_span, "name", None) == "starlette"


def other_instrumentor(app: object) -> str | None:
    """Another ASGI instrumentation around or inside ``app``, if one can be seen from here."""
    for name, cls in _INSTRUMENTORS:
        instrumentor = getattr(sys.modules.get(f"opentelemetry.instrumentation.{name}"), cls, None)
        if instrumentor is not None and getattr(instrumentor(), "is_instrumented_by_opentelemetry", False):
            return f"opentelemetry-instrumentation-{name}"
    for _ in range(_MAX_DEPTH):
        if app is None:
            break
        if type(app).__module__.startswith("opentelemetry.instrumentation."):
            return type(app).__module__
        # By the second FastAPI's router knows its application.
        for candidate in (app, getattr(app, "dependency_overrides_provider", None)):
            if getattr(candidate, "_is_instrumented_by_opentelemetry", False):
                return "an instrument_app() of OpenTelemetry"
        app = getattr(app, "app", None)
    return None
