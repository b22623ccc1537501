"""Quart: wrapped from outside, its routes named by ``name_routes``. The routes are in ``raw.py``'s docstring.

Its exceptions become responses inside of it, and a handler is cancelled when its client leaves. It mounts nothing: what
is an ASGI application of its own stands beside it, and has no route.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import support
from quart import Blueprint, Quart, Response, abort, request, send_file, websocket

from otelctx.asgi.middleware import wrap
from otelctx.asgi.quart import name_routes

app = name_routes(Quart(__name__))
tenants = Blueprint("tenants", __name__)
BESIDE: dict[str, Any] = {"/trailers": support.trailers, "/hints": support.hints}


@app.get("/items/<item_id>")
async def item(item_id: str) -> Any:
    return support.enter()


@tenants.get("/items/<item_id>")
async def tenant_item(tenant: str, item_id: str) -> Any:
    return support.enter()


@app.get("/health")
async def health() -> Any:
    return support.enter()


@app.get("/stream")
async def stream() -> Any:
    support.enter()
    return Response(support.pieces(), content_type="text/plain")


@app.get("/sse")
async def sse() -> Any:
    support.enter()
    return Response(support.pieces(support.EVENTS), content_type="text/event-stream")


@app.get("/endless")
async def endless() -> Any:
    support.enter()
    response = Response(support.endless(), content_type="text/event-stream")
    response.timeout = None
    return response


@app.get("/background")
async def background() -> Any:
    support.enter()
    app.add_background_task(support.later)  # it begins at once, beside the response
    return Response("done", content_type="text/plain")


@app.get("/outliving")
async def outliving() -> Any:
    support.enter()
    support.let_go()
    return "done"


@app.get("/overloaded")
async def overloaded() -> Any:
    support.enter()
    support.overloaded()


@app.get("/boom")
def boom() -> Any:
    """In a thread, as Quart runs functions that aren't coroutines."""
    support.enter()
    raise support.Boom("before the response")


@app.get("/boom-late")
async def boom_late() -> Any:
    support.enter()
    return Response(support.pieces(fail=True), content_type="text/plain")


@app.get("/slow")
async def slow() -> Any:
    support.enter()
    await support.forever()
    return ""


@app.post("/upload")
async def upload() -> Any:
    support.enter()
    size = 0
    async for piece in request.body:
        size += len(piece)
    return {"size": size}


@app.get("/file")
async def file() -> Any:
    support.enter()
    return await send_file(support.FILE)


@app.websocket("/ws")
async def ws() -> None:
    support.enter()
    await websocket.accept()
    while True:
        text = await websocket.receive()
        if text == "boom":
            raise support.Boom("in the connection")
        if text.startswith("close "):
            await websocket.close(int(text.removeprefix("close ")))
            return
        await websocket.send(text)


@app.websocket("/ws/closed")
async def ws_closed() -> None:
    support.enter()
    await websocket.close(1008)


@app.websocket("/ws/denied")
async def ws_denied() -> None:
    support.enter()
    abort(Response("denied", 401))


app.register_blueprint(tenants, url_prefix="/tenants/<tenant>")


async def beside(scope: Any, receive: Any, send: Any) -> None:
    found = BESIDE.get(scope.get("path", "").removeprefix(scope.get("root_path", "")), app)
    await found(scope, receive, send)


VARIANTS: dict[str, Callable[[], Any]] = {"quart": lambda: wrap(beside, excluded="/health")}
