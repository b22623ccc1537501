"""FastAPI, which traces by itself once a provider is there: added as middleware, and wrapped from outside.

The routes are in ``raw.py``'s docstring; those without a word of FastAPI's own are Starlette's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import support
from apps import starlette as plain
from fastapi import APIRouter, BackgroundTasks, FastAPI, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from otelctx.asgi.middleware import ContextMiddleware, wrap

tenants = APIRouter(prefix="/tenants/{tenant}")


@tenants.get("/items/{item_id}")
async def tenant_item(tenant: str, item_id: str) -> dict[str, Any]:
    return support.enter()


async def item(item_id: str) -> JSONResponse:
    return JSONResponse(support.enter())


async def health() -> dict[str, Any]:
    return support.enter()


async def background(tasks: BackgroundTasks) -> PlainTextResponse:
    support.enter()
    tasks.add_task(support.work)
    return PlainTextResponse("done")


def boom() -> None:
    """In a thread, as FastAPI runs functions that aren't coroutines."""
    support.enter()
    raise support.Boom("before the response")


async def upload(request: Request) -> dict[str, int]:
    support.enter()
    size = 0
    async for piece in request.stream():
        size += len(piece)
    return {"size": size}


async def stream(request: Request) -> StreamingResponse:
    support.enter()
    return StreamingResponse(support.pieces(), media_type="text/plain")


async def ws(websocket: WebSocket) -> None:
    await plain.ws(websocket)


async def slow(request: Request) -> Response:
    return await plain.slow(request)


async def ws_closed(websocket: WebSocket) -> None:
    await plain.ws_closed(websocket)


async def ws_denied(websocket: WebSocket) -> None:
    await plain.ws_denied(websocket)


def build() -> FastAPI:
    plainly = ("/outliving", "/overloaded", "/sse", "/endless", "/boom-late", "/file", "/trailers", "/hints")
    app = FastAPI(routes=[Route(path, plain.HANDLERS[path]) for path in plainly])
    app.api_route("/items/{item_id}", methods=["GET", "HEAD"])(item)
    app.get("/health")(health)
    app.get("/background")(background)
    app.get("/boom")(boom)
    app.get("/stream")(stream)
    app.get("/slow")(slow)
    app.post("/upload")(upload)
    app.include_router(tenants)
    app.websocket("/ws")(ws)
    app.websocket("/ws/closed")(ws_closed)
    app.websocket("/ws/denied")(ws_denied)
    return app


def added() -> FastAPI:
    app = build()
    app.add_middleware(ContextMiddleware, excluded="/health")
    return app


VARIANTS: dict[str, Callable[[], Any]] = {
    "fastapi": added,
    "fastapi-wrapped": lambda: wrap(build(), excluded="/health"),
}
