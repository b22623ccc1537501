"""The WebSocket client of httpx2: its handshake is a request like others, and over with the 101."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import time
from typing import Any

import httpx2
import pytest
from opentelemetry.trace import StatusCode

from otelctx.clients.dispatch import instrument
from otelctx.context.current import ContextKey
from otelctx.context.scope import Scope
from otelctx.exchange import server
from otelctx.exchange.node import Node

pytestmark = pytest.mark.skipif(not hasattr(httpx2.Client, "websocket"), reason="this httpx2 has no WebSocket client")
TIER = ContextKey("clients.websocket.tier", str)


class Echo:
    """Says what it hears; notes the context of each handshake. With ``status`` it denies."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.seen: list[tuple[str | None, dict[str, Any]]] = []
        self.traces: list[bytes] = []
        self.status: int | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        lines = [value for name, value in scope["headers"] if name == b"otelctx"]
        found = server.open(self.node, lines=lines, baggage=None, client="127.0.0.1", forwarded=None, now=time())
        self.seen.append((found.kind, dict(found.scope.state)))
        self.traces += [value for name, value in scope["headers"] if name == b"traceparent"]
        await receive()
        if self.status is not None:
            await send({"type": "websocket.http.response.start", "status": self.status, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b""})
            return
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})


@pytest.fixture
def echo(node: Callable[..., Node], running: Any) -> Iterator[tuple[Echo, str]]:
    made = Echo(node())
    with running(made, ws="websockets-sansio") as url:
        yield made, url.replace("http://", "ws://") + "/chat?token=hunter2"


def test_a_sync_connection(echo: tuple[Echo, str], node: Callable[..., Node], chat: Scope, seen: Any) -> None:
    app, url = echo
    with httpx2.Client(trust_env=False) as client, TIER.bound("gold"):
        instrument(client, node=node(), tracer_provider=seen.tracers, meter_provider=seen.meters)
        with client.websocket(url) as socket:
            ended = seen.span()  # over with the head: what follows is no HTTP, and may last for hours
            socket.send_text("hello")
            assert socket.receive_text() == "hello"
    check(app, ended, seen)


async def test_an_async_connection(echo: tuple[Echo, str], node: Callable[..., Node], chat: Scope, seen: Any) -> None:
    app, url = echo
    async with httpx2.AsyncClient(trust_env=False) as client:
        instrument(client, node=node(), tracer_provider=seen.tracers, meter_provider=seen.meters)
        with TIER.bound("gold"):
            async with client.websocket(url) as socket:
                ended = seen.span()
                await socket.send_text("hello")
                assert await socket.receive_text() == "hello"
    check(app, ended, seen)


def check(app: Echo, span: Any, seen: Any) -> None:
    assert app.seen == [("full", {"session.id": "chat-42", "clients.websocket.tier": "gold"})]
    assert app.traces[0].split(b"-")[2].decode() == format(span.context.span_id, "016x")
    assert (span.name, span.attributes["http.response.status_code"], span.status.is_unset) == ("GET", 101, True)
    assert span.attributes["url.full"].endswith("/chat?token=REDACTED")
    assert len(seen.spans()) == len(seen.durations()) == 1


def test_many_handshakes_take_whole_frames(
    echo: tuple[Echo, str], node: Callable[..., Node], chat: Scope, seen: Any
) -> None:
    """None of them could be repeated, if the state behind a reference were missing."""
    app, url = echo
    with httpx2.Client(trust_env=False) as client:
        instrument(client, node=node(), tracer_provider=seen.tracers, meter_provider=seen.meters)
        for _ in range(5):
            with client.websocket(url):
                pass
    assert [kind for kind, _ in app.seen] == ["full"] * 5


def test_a_handshake_that_is_denied_is_an_error_and_ends(
    echo: tuple[Echo, str], node: Callable[..., Node], chat: Scope, seen: Any
) -> None:
    app, url = echo
    app.status = 403
    with httpx2.Client(trust_env=False) as client:
        instrument(client, node=node(), tracer_provider=seen.tracers, meter_provider=seen.meters)
        with pytest.raises(Exception, match=r"(?i)upgrade|403|websocket"), client.websocket(url):
            pass
    span, (duration,) = seen.span(), seen.durations()
    assert (span.attributes["error.type"], duration["error.type"]) == ("403", "403")
    assert span.status.status_code is StatusCode.ERROR
