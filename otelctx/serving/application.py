"""The ASGI application: routes around one engine, wrapped by the context middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.errors import OtelctxError
from otelctx.exchange.node import Node
from otelctx.inference.engines.base import Engine
from otelctx.serving import answers, health
from otelctx.serving.body import Limits
from otelctx.serving.request_id import RequestId
from otelctx.serving.routes import routes

__all__ = ["app"]

_LIMITS: Final = Limits()


def app(
    engine: Engine,
    *,
    node: Node | None = None,
    max_body: int = _LIMITS.size,
    body_timeout: float = _LIMITS.seconds,
    **options: Any,
) -> ContextMiddleware:
    """An OpenAI-compatible ASGI application in front of ``engine``, which its lifespan starts and closes.

    ``max_body`` is the size of a request's body in bytes up to which it is read, ``body_timeout`` the seconds in which
    all of it must come in; ``options`` are those of :class:`~otelctx.asgi.middleware.ContextMiddleware`.
    """
    inner = Starlette(
        routes=routes(engine, Limits(max_body, body_timeout), version=version("otelctx")),
        exception_handlers=_HANDLERS,
        lifespan=_lifespan(engine),
    )
    # A redirect's target would be made from the request's own Host header.
    inner.router.redirect_slashes = False
    excluded = options.pop("excluded", health.PATHS)
    return ContextMiddleware(RequestId(inner), node=node, excluded=excluded, **options)


_HANDLERS: Mapping[Any, Any] = {
    OtelctxError: answers.known_error,
    HTTPException: answers.no_such_route,
    Exception: answers.failed,
}


def _lifespan(engine: Engine) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await engine.start()
        try:
            yield
        finally:
            await engine.close()

    return lifespan
