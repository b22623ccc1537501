"""Frames in, acks out, where the request is a websocket handshake."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from otelctx.context.current import ContextKey, session
from otelctx.exchange import client
from otelctx.exchange.node import Node
from otelctx.settings import Settings

KEYS = "1:" + base64.b64encode(b"k" * 32).decode()
TIER = ContextKey("asgi.exchange.tier", str)


def keyed(**settings: Any) -> Node:
    return Node(Settings(keys=KEYS, **settings))


class Caller:
    """A client of the protocol that sends through the rig. Time stands still."""

    def __init__(self, rig: Any, **settings: Any) -> None:
        self.rig = rig
        self.node = keyed(**settings)
        self.kinds: list[str | None] = []

    async def post(self, path: str = "/chat", method: str = "POST", body: bytes = b"{}", **extra: Any) -> Any:
        exchange = client.begin(
            self.node, scheme="http", host="127.0.0.1", port=80, method=method, path=path, body=2, now=0.0, unix=NOW
        )
        self.kinds.append(exchange.kind)
        response = await self.rig.request(method, path, dict(exchange.headers), body=body, **extra)
        acks = [v for n, v in response.messages[0].get("headers", ()) if n == b"otelctx-ack"]
        response.verdict = exchange.close(response.status, acks, 0.0, NOW)
        response.acks = acks
        return response


NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    from otelctx.asgi import entry, websocket

    for module in (entry, websocket):
        monkeypatch.setattr(module, "time", lambda: NOW)


@pytest.mark.parametrize("extension", [True, False])
async def test_a_websocket_handshake_with_an_unknown_base_is_denied(rig: Any, ok: Any, extension: bool) -> None:
    ran: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            ran.append(1)
        else:
            await ok(send)

    caller = Caller(rig(app, node=keyed()))
    with session("chat-1"):
        for _ in range(4):
            await caller.post()
        exchange = client.begin(
            caller.node, scheme="http", host="127.0.0.1", port=80, method="POST", path="/chat", body=2, now=0, unix=NOW
        )
    assert exchange.kind == "ref"
    cold = rig(app, node=keyed())
    extensions = {"websocket.http.response": {}} if extension else None
    order: list[str] = []
    response = await cold.websocket("/ws", [], dict(exchange.headers), order=order, extensions=extensions)
    assert order[:2] == ["receive", "send"], "a server may take no answer before its connect is read"
    assert ran == []
    assert cold.span.attributes["http.response.status_code"] == (412 if extension else 403)
    if extension:
        assert response.headers["otelctx-ack"]


async def test_an_accepted_websocket_gets_its_ack_with_the_handshake(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert TIER.get() == "gold"
        await send({"type": "websocket.accept", "headers": [(b"cache-control", b"private")]})
        await send({"type": "websocket.close", "code": 1000})

    r = rig(app, node=keyed())
    with session("chat-1"), TIER.bound("gold"):
        exchange = client.begin(
            keyed(), scheme="ws", host="127.0.0.1", port=80, method="GET", path="/ws", body=None, now=0, unix=NOW
        )
    response = await r.websocket("/ws", [], dict(exchange.headers))
    assert "otelctx-ack" in response.headers
    assert r.spans[1].attributes["session.id"] == "chat-1"
