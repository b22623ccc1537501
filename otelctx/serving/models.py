"""``/v1/models``: the one model that this worker serves, with the window that is in effect."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from otelctx.inference.engines.base import Engine
from otelctx.serving.answers import NotFound, reply

__all__ = ["Models", "require"]


def require(engine: Engine, name: str) -> None:
    """Raise :class:`~otelctx.serving.answers.NotFound` unless ``engine`` serves the model ``name``."""
    if name != engine.name:
        raise NotFound(
            f"the model {name[:200]!r} does not exist; this server has {engine.name!r}",
            code="model_not_found",
            param="model",
        )


class Models:
    """Handlers of both routes. ``created`` is when the model was loaded, in seconds since the epoch."""

    def __init__(self, engine: Engine, created: int) -> None:
        self._engine = engine
        self._created = created

    async def list(self, request: Request) -> Response:
        return reply({"object": "list", "data": [self._model()]})

    async def one(self, request: Request) -> Response:
        name = request.path_params["model"]
        if not name:
            raise HTTPException(404)
        require(self._engine, name)
        return reply(self._model())

    def _model(self) -> dict[str, Any]:
        engine = self._engine
        return {
            "id": engine.name,
            "object": "model",
            "created": self._created,
            "owned_by": "otelctx",
            "max_model_len": engine.window,  # where clients of vLLM look for it
            "otelctx": {"window": engine.window, "model_max": engine.model_max},
        }
