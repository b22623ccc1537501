"""ASGI applications of known frameworks: each gets a middleware around all that it does, native tracing included."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.asgi.quart import name_routes
from otelctx.asgi.types import Receive, Scope, Send
from otelctx.auto.patches import Patches

__all__ = ["applications"]

# (module, class); of a class and its base each request is the outer one's, as with all middlewares of ours.
_CLASSES: Final = (
    ("starlette.applications", "Starlette"),
    ("fastapi.applications", "FastAPI"),
    ("litestar.app", "Litestar"),
    ("quart.app", "Quart"),
    ("django.core.handlers.asgi", "ASGIHandler"),
)
_APP: Final = "otelctx.app"  # in the scope, from the application to the inside of the middleware
_DJANGO_ROUTES: Final = "otelctx.asgi.django.RouteMiddleware"


def applications(patches: Patches, options: Callable[[], dict[str, Any]]) -> None:
    """``options`` are those of :class:`~otelctx.asgi.middleware.ContextMiddleware`, asked at the first request."""
    for module, name in _CLASSES:
        patches.when_imported(module, _patcher(patches, name, options))


def _patcher(patches: Patches, name: str, options: Callable[[], dict[str, Any]]) -> Callable[[ModuleType], None]:
    def patch(module: ModuleType) -> None:
        cls = getattr(module, name)
        patches.put(cls, "__call__", lambda call: _outermost(call, patches, options))
        if name in _INITS:
            patches.put(cls, "__init__", lambda init: _INITS[name](init, patches))

    return patch


def _outermost(call: Callable[..., Any], patches: Patches, options: Callable[[], dict[str, Any]]) -> Any:
    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        await call(scope.pop(_APP), scope, receive, send)

    made: list[ContextMiddleware] = []  # one for all applications of the class: what differs is in the scope

    @wraps(call)
    async def __call__(self: Any, scope: Scope, receive: Receive, send: Send) -> None:  # servers look at its kind
        if not patches.active:
            await call(self, scope, receive, send)
            return
        if not made:
            made.append(ContextMiddleware(inner, **options()))
        scope[_APP] = self
        await made[0](scope, receive, send)

    return __call__


def _quart(init: Callable[..., Any], patches: Patches) -> Any:
    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if patches.active:
            name_routes(self)

    return __init__


def _django(init: Callable[..., Any], patches: Patches) -> Any:
    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        settings = import_module("django.conf").settings
        if patches.active and _DJANGO_ROUTES not in settings.MIDDLEWARE:
            settings.MIDDLEWARE = [_DJANGO_ROUTES, *settings.MIDDLEWARE]
        init(self, *args, **kwargs)

    return __init__


# Frameworks that leave no route in the scope need something inside.
_INITS: Final = {"Quart": _quart, "ASGIHandler": _django}
