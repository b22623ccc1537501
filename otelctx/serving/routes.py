"""All routes around one engine, each with what is documented of it."""

from __future__ import annotations

from time import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from otelctx.inference.engines.base import Engine
from otelctx.serving import body, parse, session_routes
from otelctx.serving.answers import reply
from otelctx.serving.generate import Generate
from otelctx.serving.health import Health
from otelctx.serving.models import Models
from otelctx.serving.openapi import Operation, document
from otelctx.serving.sessions import Sessions
from otelctx.serving.wire import ChatForm, TextForm

__all__ = ["routes"]

_GENERATE: Final = (400, 404, 408, 409, 413, 415, 422, 500, 503)


def routes(engine: Engine, limits: body.Limits, *, version: str) -> list[Route]:
    """Starlette's routes for ``engine``; ``version`` is what the document says is running."""
    table = _table(engine, limits)
    operations = [operation for operation, _ in table]

    async def openapi(request: Request) -> Response:
        return reply(document([*operations, _OPENAPI], model=engine.name, version=version))

    return [session_routes.route(operation, endpoint) for operation, endpoint in [*table, (_OPENAPI, openapi)]]


_OPENAPI: Final = Operation("openapi", "GET", "/openapi.json", "This document", "Document")


def _table(engine: Engine, limits: body.Limits) -> list[tuple[Operation, Any]]:
    models, state = Models(engine, int(time())), Health(engine)
    return [
        (
            Operation(
                "createChatCompletion", "POST", "/v1/chat/completions", "Answer a conversation", "ChatCompletion",
                "ChatCompletionChunk", "ChatCompletionRequest", _GENERATE,
            ),
            Generate(engine, parse.chat, ChatForm, limits),
        ),
        (
            Operation(
                "createCompletion", "POST", "/v1/completions", "Go on from a text", "Completion", "CompletionChunk",
                "CompletionRequest", _GENERATE,
            ),
            Generate(engine, parse.text, TextForm, limits),
        ),
        (Operation("listModels", "GET", "/v1/models", "The one model that there is", "Models"), models.list),
        (
            # Names of models contain slashes.
            Operation("retrieveModel", "GET", "/v1/models/{model:path}", "A model", "Model", errors=(404, 500)),
            models.one,
        ),
        *session_routes.table(Sessions(engine, limits)),
        (
            Operation("alive", "GET", "/healthz", "The process need not be started anew", "Health", unready="Health"),
            state.alive,
        ),
        (
            Operation("ready", "GET", "/readyz", "It can take a turn", "Health", unready="Health"),
            state.ready,
        ),
    ]  # fmt: skip
