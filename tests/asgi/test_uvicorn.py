"""Behind the real server: requests of one connection do not leak into each other."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
import uvicorn
from opentelemetry import trace

from otelctx.context.current import ContextKey, current_scope
from otelctx.exchange.node import Node
from otelctx.settings import Settings

TIER = ContextKey("asgi.uvicorn.tier", str)


class Server:
    """One uvicorn in a thread, on a free port of the loopback."""

    def __init__(self, app: Any, http: str) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            app, http=http, log_level="warning", lifespan="off", loop="asyncio", timeout_graceful_shutdown=60
        )
        self.server = uvicorn.Server(config)
        # Without signal handlers: it runs beside the test.
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)

    def __enter__(self) -> tuple[str, int]:
        self.thread.start()
        return self.socket.getsockname()[:2]

    def __exit__(self, *error: object) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive()


def exchange(address: tuple[str, int], wire: bytes, until: bytes, times: int) -> bytes:
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(wire)
        received = b""
        while received.count(until) < times:
            chunk = connection.recv(65536)
            assert chunk, received
            received += chunk
        return received


def request(path: str, extra: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: h\r\n{extra}\r\n".encode()


@pytest.fixture(params=["h11", "httptools"])
def http(request: Any) -> str:
    pytest.importorskip(request.param)
    implementation: str = request.param
    return implementation


def test_pipelined_and_keep_alive_requests_are_roots_of_their_own(rig: Any, http: str) -> None:
    """uvicorn runs each request of a connection in the Context that it had when the connection was made or when the
    request before it ended; a pipelined one would find a span that is still recording."""
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        span = trace.get_current_span().get_span_context()
        seen[scope["path"]] = (span.span_id, TIER.get())
        TIER.set(scope["path"])
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"DONE"})

    r = rig(app)
    parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
    with Server(r.app, http) as address:
        exchange(address, request("/1") + request("/2", parent) + request("/3"), b"DONE", 3)
    spans = {s.attributes["url.path"]: s for s in r.spans}
    assert set(spans) == {"/1", "/2", "/3"}
    assert [spans[p].parent is None for p in ("/1", "/2", "/3")] == [True, False, True]
    assert trace.format_span_id(spans["/2"].parent.span_id) == "b7ad6b7169203331"
    assert len({s.context.trace_id for s in spans.values()}) == 3
    assert seen == {path: (spans[path].context.span_id, None) for path in spans}


def test_a_client_that_leaves_a_stream_is_seen(rig: Any, http: str) -> None:
    gone = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"FIRST", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    r = rig(app)
    with Server(r.app, http) as address:
        exchange(address, request("/"), b"FIRST", 1)
        assert gone.wait(60)
    assert r.span.attributes["otelctx.client.disconnected"] is True
    assert "error.type" not in r.point()


def test_an_error_of_ours_reaches_a_real_client(rig: Any, http: str) -> None:
    from otelctx.errors import Overloaded

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise Overloaded("full", retry_after=3)

    r = rig(app)
    with Server(r.app, http) as address:
        answer = exchange(address, request("/"), b"overloaded", 1)
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 3" in answer.lower()


@pytest.mark.parametrize(
    ("forwarded", "proxies", "source"),
    [
        (None, (), "none"),
        ("203.0.113.9", (), "none"),  # a stranger's own words
        ("203.0.113.9:4711", (), "none"),
        ("203.0.113.9, 127.0.0.1", (), "none"),
        ("203.0.113.9", ("127.0.0.1",), "baggage"),
        ("203.0.113.9, 198.51.100.1", ("127.0.0.1",), "none"),
    ],
)
def test_a_client_address_that_the_server_took_from_a_header_is_believed_from_our_proxies_only(
    rig: Any, http: str, forwarded: str | None, proxies: tuple[str, ...], source: str
) -> None:
    """By default uvicorn puts what X-Forwarded-For says in the peer's place for every connection from the loopback: a
    plain ``proxy_pass`` would have the whole internet choose its address."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        here = current_scope()
        assert here is not None
        seen.append(here.source)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"DONE"})

    ContextKey("asgi.uvicorn.public", str, visibility="public")
    node = Node(Settings(trusted_clients=("203.0.113.0/24",), trusted_proxies=proxies))
    lines = "Baggage: asgi.uvicorn.public=x\r\n"
    if forwarded is not None:
        lines += f"X-Forwarded-For: {forwarded}\r\n"
    with Server(rig(app, node=node).app, http) as address:
        exchange(address, request("/", lines), b"DONE", 1)
    assert seen == [source]
