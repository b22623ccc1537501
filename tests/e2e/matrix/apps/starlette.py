"""Starlette: wrapped from outside, by ``add_middleware``, and with a ``BaseHTTPMiddleware`` on either side.

The routes are in ``raw.py``'s docstring. ``BaseHTTPMiddleware`` runs the application in a task of its own and pumps the
messages through a queue: whatever a middleware relies on that a plain call has, is missing there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import support
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, Router, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from otelctx.asgi.middleware import ContextMiddleware, wrap


async def seen(request: Request) -> Response:
    return JSONResponse(support.enter())


async def stream(request: Request) -> Response:
    support.enter()
    return StreamingResponse(support.pieces(), media_type="text/plain")


async def sse(request: Request) -> Response:
    support.enter()
    return StreamingResponse(support.pieces(support.EVENTS), media_type="text/event-stream")


async def endless(request: Request) -> Response:
    support.enter()
    return StreamingResponse(support.endless(), media_type="text/event-stream")


async def background(request: Request) -> Response:
    support.enter()
    return PlainTextResponse("done", background=BackgroundTask(support.work))


async def outliving(request: Request) -> Response:
    support.enter()
    support.let_go()
    return PlainTextResponse("done")


async def overloaded(request: Request) -> Response:
    support.enter()
    support.overloaded()
    return Response()


async def boom(request: Request) -> Response:
    support.enter()
    raise support.Boom("before the response")


async def boom_late(request: Request) -> Response:
    support.enter()
    return StreamingResponse(support.pieces(fail=True), media_type="text/plain")


async def slow(request: Request) -> Response:
    support.enter()
    support.mark("waiting")
    while (await request.receive())["type"] != "http.disconnect":
        pass  # is_disconnected() is never true behind a BaseHTTPMiddleware
    support.mark("gone")
    return Response(status_code=204)


async def upload(request: Request) -> Response:
    support.enter()
    return JSONResponse({"size": len(await request.body())})


async def file(request: Request) -> Response:
    support.enter()
    return FileResponse(support.FILE)


async def ws(websocket: WebSocket) -> None:
    support.enter()
    await websocket.accept()
    try:
        while True:
            text = await websocket.receive_text()
            if text == "boom":
                raise support.Boom("in the connection")
            if text.startswith("close "):
                await websocket.close(int(text.removeprefix("close ")))
                return
            await websocket.send_text(text)
    except WebSocketDisconnect:
        return


async def ws_closed(websocket: WebSocket) -> None:
    support.enter()
    await websocket.close(1008)


async def ws_denied(websocket: WebSocket) -> None:
    support.enter()
    await websocket.send_denial_response(PlainTextResponse("denied", 401))


class Raw:
    """An ASGI application as an endpoint: Starlette takes a class or an instance for one, but not a function."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


HANDLERS: dict[str, Any] = {
    "/items/{item_id}": seen,
    "/health": seen,
    "/stream": stream,
    "/sse": sse,
    "/endless": endless,
    "/background": background,
    "/outliving": outliving,
    "/overloaded": overloaded,
    "/boom": boom,
    "/boom-late": boom_late,
    "/slow": slow,
    "/file": file,
    "/trailers": Raw(support.trailers),
    "/hints": Raw(support.hints),
}


def build() -> Starlette:
    tenant = Router([Route("/items/{item_id}", seen)])
    return Starlette(
        routes=[
            *(Route(path, handler) for path, handler in HANDLERS.items()),
            Route("/upload", upload, methods=["POST"]),
            Mount("/tenants/{tenant}", app=tenant),
            WebSocketRoute("/ws", ws),
            WebSocketRoute("/ws/closed", ws_closed),
            WebSocketRoute("/ws/denied", ws_denied),
        ]
    )


class Passing(BaseHTTPMiddleware):
    """Does nothing, in the way in which ``BaseHTTPMiddleware`` does it."""

    async def dispatch(self, request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        return response


def added(*middleware: Any) -> Starlette:
    """Middleware in the order of ``add_middleware``: the last is the outermost."""
    app = build()
    for each in middleware:
        options = {"excluded": "/health"} if each is ContextMiddleware else {}
        app.add_middleware(each, **options)
    return app


VARIANTS: dict[str, Callable[[], Any]] = {
    "starlette": lambda: wrap(build(), excluded="/health"),
    "starlette-added": lambda: added(ContextMiddleware),
    "starlette-base-inside": lambda: added(Passing, ContextMiddleware),
    "starlette-base-outside": lambda: added(ContextMiddleware, Passing),
}
