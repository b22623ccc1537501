"""``/healthz``: the process answers, and is not one that only a new one can replace. ``/readyz``: it can take a turn.

So a supervisor that starts processes anew by their ``/healthz`` does that when it helps, and never while an engine
loads or drains.
"""

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
        if self._engine.broken is None:
            return reply({"status": "ok"})
        # Why stands in the log: it is none of a stranger's business.
        return reply({"status": "broken", "model": self._engine.name}, 503)

    async def ready(self, request: Request) -> Response:
        if self._engine.ready:
            return reply({"status": "ready", "model": self._engine.name})
        return reply({"status": "not ready", "model": self._engine.name}, 503)
