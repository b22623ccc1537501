"""A websocket has a span for its handshake and a linked one for its connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from starlette.websockets import WebSocketDisconnect

from otelctx.context.current import ContextKey, current_scope

TIER = ContextKey("asgi.ws.tier", str)
PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
TEXT = {"type": "websocket.receive", "text": "hi"}
ACCEPT = {"type": "websocket.accept"}


def gone(code: int = 1001) -> dict[str, Any]:
    return {"type": "websocket.disconnect", "code": code}


async def test_the_server_span_ends_at_the_accept_and_the_connection_is_linked(rig: Any) -> None:
    at_accept: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        handshake = trace.get_current_span().get_span_context().span_id
        await send(ACCEPT)
        at_accept.extend(r.spans)
        assert trace.get_current_span().get_span_context().span_id != handshake
        with r.tracers.get_tracer("x").start_as_current_span("work"):
            pass
        for _ in range(2):
            await receive()
            await send({"type": "websocket.send", "text": "ho"})
        assert (await receive())["type"] == "websocket.disconnect"

    r = rig(app)
    await r.websocket("/ws", [TEXT, TEXT, gone()], PARENT)
    (server,) = at_accept
    _, work, connection = r.spans
    assert (server.name, server.kind, server.attributes["http.response.status_code"]) == ("GET", SpanKind.SERVER, 101)
    assert server.attributes["url.scheme"] == "ws"
    assert trace.format_span_id(server.parent.span_id) == "b7ad6b7169203331"
    assert (connection.name, connection.kind, connection.parent) == ("websocket", SpanKind.INTERNAL, None)
    assert [link.context.span_id for link in connection.links] == [server.context.span_id]
    assert work.parent.span_id == connection.context.span_id
    assert connection.attributes["otelctx.websocket.messages.received"] == 2
    assert connection.attributes["otelctx.websocket.messages.sent"] == 2
    assert connection.attributes["otelctx.websocket.close_code"] == 1001
    assert connection.status.status_code is StatusCode.UNSET
    assert r.points("http.server.request.duration") == [], "connections are not requests"


async def denied(send: Any, status: int) -> None:
    await send({"type": "websocket.http.response.start", "status": status, "headers": []})
    await send({"type": "websocket.http.response.body", "body": b""})


async def close(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1008})


async def deny_401(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await denied(send, 401)


async def deny_500(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await denied(send, 500)


async def deny_503(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await denied(send, 503)


async def silent(scope: Any, receive: Any, send: Any) -> None:
    await receive()


async def raises(scope: Any, receive: Any, send: Any) -> None:
    raise KeyError("bug")


async def waits(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await receive()


@pytest.mark.parametrize(
    ("app", "raised", "status", "error"),
    [
        (close, None, 403, None),
        (deny_401, None, 401, None),
        (deny_500, None, 500, "500"),
        (deny_503, None, 503, "503"),
        (silent, None, 500, "500"),
        (raises, KeyError, 500, "KeyError"),
        (waits, None, None, None),
    ],
)
async def test_a_handshake_that_fails_is_one_span_with_its_status(
    rig: Any, app: Any, raised: Any, status: int | None, error: str | None
) -> None:
    r = rig(app)
    if raised is None:
        await r.websocket("/ws", [gone()])
    else:
        with pytest.raises(raised):
            await r.websocket("/ws", [gone()])
    assert r.span.attributes.get("http.response.status_code") == status
    assert r.span.attributes.get("error.type") == error
    assert r.span.status.status_code is (StatusCode.ERROR if error else StatusCode.UNSET)
    assert r.span.attributes.get("otelctx.client.disconnected") is (True if app is waits else None)
    assert current_scope() is None


async def accepted_then(ending: BaseException | None, code: int | None, receive: Any, send: Any) -> None:
    await receive()
    await send(ACCEPT)
    if code is not None:
        await send({"type": "websocket.close", "code": code})
    if ending is not None:
        raise ending


@pytest.mark.parametrize(
    ("ending", "code", "error"),
    [
        (None, 1000, None),
        (None, 1008, None),
        (None, 1011, "1011"),
        (KeyError("bug"), None, "KeyError"),
        (asyncio.CancelledError(), None, None),
    ],
)
async def test_how_a_connection_ends(rig: Any, ending: Any, code: int | None, error: str | None) -> None:
    r = rig(lambda scope, receive, send: accepted_then(ending, code, receive, send))
    if ending is None:
        await r.websocket("/ws", [])
    else:
        with pytest.raises(type(ending)):
            await r.websocket("/ws", [])
    server, connection = r.spans
    assert "error.type" not in server.attributes
    assert connection.attributes.get("otelctx.websocket.close_code") == code
    assert connection.attributes.get("error.type") == error
    assert connection.status.status_code is (StatusCode.ERROR if error else StatusCode.UNSET)


async def test_fastapis_websocket_route_and_its_disconnect(rig: Any) -> None:
    app = FastAPI()

    @app.websocket("/rooms/{room}")
    async def room(websocket: WebSocket, room: str) -> None:
        TIER.set("gold")
        await websocket.accept()
        while True:
            await websocket.send_text(await websocket.receive_text())

    r = rig(app)
    with pytest.raises(WebSocketDisconnect):
        await r.websocket("/rooms/blue", [TEXT, gone(1005)])
    server, connection = r.spans
    assert (server.name, connection.name) == ("GET /rooms/{room}", "websocket /rooms/{room}")
    assert connection.status.status_code is StatusCode.UNSET
    assert connection.attributes["otelctx.websocket.messages.sent"] == 1


async def test_an_excluded_websocket_records_nothing(rig: Any) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(trace.format_span_id(trace.get_current_span().get_span_context().span_id))
        await accepted_then(None, 1000, receive, send)

    r = rig(app, excluded="/ws")
    await r.websocket("/ws", [], PARENT)
    assert seen == ["b7ad6b7169203331"]
    assert r.spans == []


async def test_a_send_to_a_client_that_has_gone_is_no_error(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(ACCEPT)
        await receive()
        raise OSError("the client has gone")

    r = rig(app)
    with pytest.raises(OSError, match="gone"):
        await r.websocket("/ws", [gone(1006)])
    assert r.spans[1].status.status_code is StatusCode.UNSET
    assert r.spans[1].attributes["otelctx.websocket.close_code"] == 1006


async def test_the_close_code_is_the_applications_own_where_the_server_is_quick_to_tell_of_the_end(rig: Any) -> None:
    """Granian tells a task that receives of the end while the close is still being sent, and of no code (1005)."""
    receives: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        receives.append(receive)
        await receive()
        await send(ACCEPT)
        await send({"type": "websocket.close", "code": 4002})

    r = rig(app)
    middleware = r.app

    async def server(scope: Any, receive: Any, send: Any) -> None:
        async def quick(message: Any) -> None:
            if message["type"] == "websocket.close":
                assert await receives[0]() == gone(1005)
            await send(message)

        await middleware(scope, receive, quick)

    r.app = server
    await r.websocket("/", [gone(1005)])
    (connection,) = [s for s in r.spans if s.name == "websocket"]
    assert connection.attributes["otelctx.websocket.close_code"] == 4002
