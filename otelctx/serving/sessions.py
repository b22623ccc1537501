"""``/v1/sessions/{id}``: the state of a session of one's own, and its end."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from otelctx.asgi.owner import owner_of
from otelctx.inference.engines.base import Engine
from otelctx.serving.answers import reply

__all__ = ["Sessions"]


class Sessions:
    """Handlers of the route. Somebody else's session is not found, as one that doesn't exist."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def get(self, request: Request) -> Response:
        session = request.path_params["session"]
        return reply(await self._engine.session_state(session, owner_of(request.scope)))

    async def delete(self, request: Request) -> Response:
        session = request.path_params["session"]
        await self._engine.delete_session(session, owner_of(request.scope))
        return reply({"id": session, "object": "session.deleted", "deleted": True})
