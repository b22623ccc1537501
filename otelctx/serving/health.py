"""``/healthz``: the process answers. ``/readyz``: it can take a turn."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from otelctx.inference.engines.base import Engine
from otelctx.serving.answers import reply

__all__ = ["PATHS", "Health"]

PATHS = ("/healthz", "/readyz")


class Health:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def alive(self, request: Request) -> Response:
        return reply({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        if self._engine.ready:
            return reply({"status": "ready", "model": self._engine.name})
        return reply({"status": "not ready", "model": self._engine.name}, 503)
