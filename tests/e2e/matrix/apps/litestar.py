"""Litestar: wrapped from outside. The routes are in ``raw.py``'s docstring.

Its exceptions become responses inside of it, and nothing is cancelled when a client leaves: ``/slow`` listens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import support
from litestar import Litestar, Request, Router, asgi, get, head, post, websocket
from litestar.background_tasks import BackgroundTask
from litestar.connection import WebSocket
from litestar.exceptions import WebSocketDisconnect
from litestar.params import FromPath
from litestar.response import File, Response, Stream

from otelctx.asgi.middleware import wrap


@get("/items/{item_id:str}", sync_to_thread=False)
def item(item_id: FromPath[str]) -> dict[str, Any]:
    return support.enter()


@head("/items/{item_id:str}", sync_to_thread=False)
def head_item(item_id: FromPath[str]) -> None:
    support.enter()


@get("/items/{item_id:str}", sync_to_thread=False)
def tenant_item(tenant: FromPath[str], item_id: FromPath[str]) -> dict[str, Any]:
    return support.enter()


@get("/health", sync_to_thread=False)
def health() -> dict[str, Any]:
    return support.enter()


@get("/stream")
async def stream() -> Stream:
    support.enter()
    return Stream(support.pieces(), media_type="text/plain")


@get("/sse")
async def sse() -> Stream:
    support.enter()
    return Stream(support.pieces(support.EVENTS), media_type="text/event-stream")


@get("/endless")
async def endless() -> Stream:
    support.enter()
    return Stream(support.endless(), media_type="text/event-stream")


@get("/background")
async def background() -> Response[str]:
    support.enter()
    return Response("done", media_type="text/plain", background=BackgroundTask(support.work))


@get("/outliving")
async def outliving() -> str:
    support.enter()
    support.let_go()
    return "done"


@get("/overloaded")
async def overloaded() -> None:
    support.enter()
    support.overloaded()


@get("/boom", sync_to_thread=True)
def boom() -> str:
    support.enter()
    raise support.Boom("before the response")


@get("/boom-late")
async def boom_late() -> Stream:
    support.enter()
    return Stream(support.pieces(fail=True), media_type="text/plain")


@get("/slow", status_code=204)
async def slow(request: Request[Any, Any, Any]) -> None:
    support.enter()
    support.mark("waiting")
    while (await request.receive())["type"] != "http.disconnect":
        pass
    support.mark("gone")


@post("/upload", status_code=200)
async def upload(request: Request[Any, Any, Any]) -> dict[str, int]:
    support.enter()
    size = 0
    async for piece in request.stream():
        size += len(piece)
    return {"size": size}


@get("/file", sync_to_thread=False)
def file() -> File:
    support.enter()
    return File(support.FILE)


@asgi("/trailers")
async def trailers(scope: Any, receive: Any, send: Any) -> None:
    await support.trailers(scope, receive, send)


@asgi("/hints")
async def hints(scope: Any, receive: Any, send: Any) -> None:
    await support.hints(scope, receive, send)


@websocket("/ws")
async def ws(socket: WebSocket[Any, Any, Any]) -> None:
    support.enter()
    await socket.accept()
    try:
        while True:
            text = await socket.receive_text()
            if text == "boom":
                raise support.Boom("in the connection")
            if text.startswith("close "):
                await socket.close(int(text.removeprefix("close ")))
                return
            await socket.send_text(text)
    except WebSocketDisconnect:
        return


@websocket("/ws/closed")
async def ws_closed(socket: WebSocket[Any, Any, Any]) -> None:
    support.enter()
    await socket.close(1008)


@websocket("/ws/denied")
async def ws_denied(socket: WebSocket[Any, Any, Any]) -> None:
    support.enter()
    start: Any = {"type": "websocket.http.response.start", "status": 401, "headers": [(b"content-length", b"6")]}
    body: Any = {"type": "websocket.http.response.body", "body": b"denied"}
    await socket.send(start)
    await socket.send(body)


def build() -> Litestar:
    tenants = Router("/tenants/{tenant:str}", route_handlers=[tenant_item])
    plain: list[Any] = [item, head_item, health, stream, sse, endless, background, boom, boom_late, slow, upload, file]
    plain += [outliving, overloaded]
    return Litestar([*plain, tenants, trailers, hints, ws, ws_closed, ws_denied])


VARIANTS: dict[str, Callable[[], Any]] = {"litestar": lambda: wrap(build(), excluded="/health")}
