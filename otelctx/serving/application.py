"""The ASGI application: routes around one engine, wrapped by the context middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.errors import OtelctxError
from otelctx.exchange.node import Node
from otelctx.inference.engines.base import Engine
from otelctx.serving import answers, health
from otelctx.serving.body import MAX_BODY
from otelctx.serving.chat import ChatCompletions
from otelctx.serving.models import Models
from otelctx.serving.sessions import Sessions

__all__ = ["app"]


def app(engine: Engine, *, node: Node | None = None, max_body: int = MAX_BODY, **options: Any) -> ContextMiddleware:
    """An OpenAI-compatible ASGI application in front of ``engine``, which its lifespan starts and closes.

    ``max_body`` is the size of a request's body in bytes up to which it is read; ``options`` are those of
    :class:`~otelctx.asgi.middleware.ContextMiddleware`.
    """
    inner = Starlette(
        routes=_routes(engine, max_body),
        exception_handlers=_HANDLERS,
        lifespan=_lifespan(engine),
    )
    excluded = options.pop("excluded", health.PATHS)
    return ContextMiddleware(inner, node=node, excluded=excluded, **options)


_HANDLERS: Mapping[Any, Any] = {
    OtelctxError: answers.known_error,
    HTTPException: answers.no_such_route,
    Exception: answers.failed,
}


def _routes(engine: Engine, max_body: int) -> list[Route]:
    models, sessions, state = Models(engine, int(time())), Sessions(engine), health.Health(engine)
    return [
        Route("/v1/chat/completions", ChatCompletions(engine, max_body=max_body), methods=["POST"]),
        Route("/v1/models", models.list),
        # Names of models contain slashes.
        Route("/v1/models/{model:path}", models.one),
        Route("/v1/sessions/{session:path}", sessions.get),
        Route("/v1/sessions/{session:path}", sessions.delete, methods=["DELETE"]),
        Route("/healthz", state.alive),
        Route("/readyz", state.ready),
    ]


def _lifespan(engine: Engine) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await engine.start()
        try:
            yield
        finally:
            await engine.close()

    return lifespan
