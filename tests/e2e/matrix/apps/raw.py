"""The model of an application of the matrix: ASGI without a framework.

Every module beside this one has ``VARIANTS``: names of the matrix's columns, each with a function that builds the
finished ASGI application, ``ContextMiddleware`` included, with ``excluded="/health"``. It imports what it shares with
the others from ``support`` (which is on the path of the server's process) and has the following routes. Each handler
calls ``support.enter()`` before anything else, websockets' before they accept.

====================================  ===================================================================
``GET``, ``HEAD /items/{item_id}``    200, JSON: what ``enter()`` has returned; ``item_id`` is text
``GET /tenants/{tenant}/items/{item_id}``  the same, in a part of the application that is mounted, included
                                      or nested under ``/tenants/{tenant}``, whatever the framework calls it
``GET /stream``                       200, ``support.pieces()``, streamed
``GET /sse``                          200, ``text/event-stream``, ``support.pieces(support.EVENTS)``
``GET /endless``                      200, ``text/event-stream``, ``support.endless()`` until the client has left
``GET /background``                   200 ``done``; ``support.work()`` once the response is out, the framework's way, or
                                      ``support.later()`` if that begins before
``GET /outliving``                    200 ``done``, after ``support.let_go()``
``GET /overloaded``                   ``support.overloaded()``
``GET /boom``                         raises ``support.Boom``
``GET /boom-late``                    200, ``support.pieces(fail=True)``: fails after the first piece
``GET /slow``                         says ``support.mark("waiting")`` and then never answers: ``support.forever()``, or
                                      it polls for the disconnect, if the framework doesn't cancel the handler by
                                      itself, and then says ``support.mark("gone")`` and answers 204 to nobody
``POST /upload``                      reads the whole body; 200, JSON ``{"size": bytes}``
``GET /health``                       as ``/items/…``; the path that is excluded
``GET /file``                         ``support.FILE`` by the framework's own means, or mounted ``support.file``
``GET /trailers``, ``GET /hints``     mounted ``support.trailers`` and ``support.hints``
``WS /ws``                            accepts; echoes each text; ``close N`` closes with that code; ``boom`` raises
                                      ``support.Boom``
``WS /ws/closed``                     closes without having accepted (a server answers 403)
``WS /ws/denied``                     refuses with a response: 401 ``denied``
====================================  ===================================================================

Any other path is 404 in the framework's way, any other method what the framework makes of it. What a framework can't
do at all is said in ``CANNOT`` of ``harness/tables.py``, where its routes' templates and exceptions stand as well.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import support

from otelctx.asgi.middleware import wrap
from otelctx.asgi.route import set_route

_TEMPLATES = {
    "/items/{item_id}": re.compile(r"/items/[^/]+"),
    "/tenants/{tenant}/items/{item_id}": re.compile(r"/tenants/[^/]+/items/[^/]+"),
}


async def seen(scope: Any, receive: Any, send: Any) -> None:
    body = json.dumps(support.enter()).encode()
    await support.answer(send, 200, body, b"application/json")


async def _stream(send: Any, pieces: AsyncIterator[bytes], kind: bytes = b"text/plain") -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    async for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def stream(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    await _stream(send, support.pieces())


async def sse(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    await _stream(send, support.pieces(support.EVENTS), b"text/event-stream")


async def endless(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    gone = asyncio.create_task(_until_gone(receive))
    pump = asyncio.create_task(_stream(send, support.endless(), b"text/event-stream"))
    try:
        await asyncio.wait({gone, pump}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        pump.cancel()
        await asyncio.wait({gone, pump})


async def _until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def background(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    await support.answer(send, 200, b"done")
    support.work()


async def outliving(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    support.let_go()
    await support.answer(send, 200, b"done")


async def overloaded(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    support.overloaded()


async def boom(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    raise support.Boom("before the response")


async def boom_late(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    await _stream(send, support.pieces(fail=True))


async def slow(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    support.mark("waiting")
    await _until_gone(receive)
    support.mark("gone")
    with suppress(OSError):
        await support.answer(send, 204, b"")


async def upload(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await support.answer(send, 200, json.dumps({"size": size}).encode(), b"application/json")


async def ws(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        text = message["text"]
        if text == "boom":
            raise support.Boom("in the connection")
        if text.startswith("close "):
            await send({"type": "websocket.close", "code": int(text.removeprefix("close "))})
            return
        await send({"type": "websocket.send", "text": text})


async def ws_closed(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    await receive()
    await send({"type": "websocket.close", "code": 1008})


async def ws_denied(scope: Any, receive: Any, send: Any) -> None:
    support.enter()
    await receive()
    await send({"type": "websocket.http.response.start", "status": 401, "headers": [(b"content-length", b"6")]})
    await send({"type": "websocket.http.response.body", "body": b"denied"})


_HTTP: dict[str, Any] = {
    "/items/{item_id}": seen,
    "/tenants/{tenant}/items/{item_id}": seen,
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
    "/upload": upload,
    "/file": support.file,
    "/trailers": support.trailers,
    "/hints": support.hints,
}
_WEBSOCKETS: dict[str, Any] = {"/ws": ws, "/ws/closed": ws_closed, "/ws/denied": ws_denied}


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        return
    path = scope["path"].removeprefix(scope["root_path"])
    template = next((name for name, pattern in _TEMPLATES.items() if pattern.fullmatch(path)), path)
    handler = (_HTTP if scope["type"] == "http" else _WEBSOCKETS).get(template)
    if handler is None and scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    if handler is None:
        await support.answer(send, 404, b"not found")
        return
    set_route(scope["root_path"] + template)
    await handler(scope, receive, send)


VARIANTS: dict[str, Callable[[], Any]] = {"raw": lambda: wrap(app, excluded="/health")}
