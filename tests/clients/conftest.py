"""Real servers on loopback, built on ``exchange.server`` alone, and what clients report of them."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep, time
from typing import Any

import pytest
import uvicorn
from opentelemetry.context import Context
from opentelemetry.propagate import get_global_textmap, set_global_textmap
from opentelemetry.propagators.textmap import TextMapPropagator

from otelctx.context.current import attach, detach, session
from otelctx.context.scope import Scope
from otelctx.exchange import server
from otelctx.exchange.node import Node
from otelctx.settings import Settings

SECRET = "1:" + base64.b64encode(bytes(range(32))).decode()
Handler = Callable[["Request"], Any]


@dataclass
class Request:
    """One request that reached a worker, as its application sees it."""

    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    exchange: server.ServerExchange
    port: int  # of the other end of its connection
    status: int = 200
    response_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    chunks: list[bytes] | AsyncIterator[bytes] = field(default_factory=lambda: [b"ok"])

    @property
    def scope(self) -> Scope:
        return self.exchange.scope

    def values(self, name: str) -> list[str]:
        return [value.decode("latin-1") for key, value in self.headers if key.decode().lower() == name]


class Worker:
    """An ASGI application that does the exchange and hands the request to ``handler``, if it may run."""

    def __init__(self, node: Node, aware: bool = True) -> None:
        self.node = node
        self.aware = aware
        self.seen: list[Request] = []
        self.refused = 0
        self.handler: Handler = lambda request: None
        self.url = ""

    def kinds(self) -> list[str | None]:
        return [request.exchange.kind for request in self.seen]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = list(scope["headers"])
        lines = [value for name, value in headers if name == b"otelctx"] if self.aware else []
        exchange = server.open(
            self.node,
            lines=lines,
            baggage=None,
            client=scope["client"][0],
            forwarded=None,
            now=time(),
        )
        if exchange.outcome == "refuse":
            self.refused += 1
            status, head, body = exchange.refusal(time())
            await _respond(send, status, [*head, (b"connection", b"close")], [body])
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        request = Request(scope["method"], scope["path"], headers, body, exchange, scope["client"][1])
        self.seen.append(request)
        tokens = attach(Context(), exchange.scope)
        try:
            done = self.handler(request)
            if asyncio.iscoroutine(done):
                await done
            ack = exchange.ack(request.method, request.response_headers, time())
            if ack is not None:
                request.response_headers.append((b"otelctx-ack", ack))
            await _respond(send, request.status, request.response_headers, request.chunks)
        finally:
            detach(tokens)
            exchange.close()


async def _respond(send: Any, status: int, headers: list[tuple[bytes, bytes]], chunks: Any) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if isinstance(chunks, list):
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    else:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@contextmanager
def running(app: Any, **options: Any) -> Iterator[str]:
    fixed: dict[str, Any] = {"http": "h11", "loop": "asyncio", "ws": "none", "lifespan": "off", "log_config": None}
    config = uvicorn.Config(app, port=0, timeout_graceful_shutdown=1, **(fixed | options))
    served = uvicorn.Server(config)
    thread = threading.Thread(target=served.run)
    thread.start()
    while not served.started:
        assert thread.is_alive()
        sleep(0.002)
    try:
        yield f"http://127.0.0.1:{served.servers[0].sockets[0].getsockname()[1]}"
    finally:
        served.should_exit = True
        thread.join()


@pytest.fixture(name="running")
def running_server() -> Callable[..., Any]:
    """A server with options of its own."""
    return running


@pytest.fixture
def node() -> Callable[..., Node]:
    def make(**settings: Any) -> Node:
        return Node(Settings(**{"keys": SECRET, **settings}))

    return make


class Socket:
    """A running server, lent to one worker at a time: starting one takes a quarter of a second."""

    def __init__(self) -> None:
        self.app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


@pytest.fixture(scope="module")
def sockets() -> Iterator[Callable[[], tuple[Socket, str]]]:
    with ExitStack() as stack:
        made: list[tuple[Socket, str]] = []

        def take() -> tuple[Socket, str]:
            for socket, url in made:
                if socket.app is None:
                    return socket, url
            socket = Socket()
            made.append((socket, stack.enter_context(running(socket))))
            return made[-1]

        yield take


@pytest.fixture
def serve(node: Callable[..., Node], sockets: Callable[[], tuple[Socket, str]]) -> Iterator[Callable[..., Worker]]:
    """Starts workers; they are gone at the end of the test."""
    used: list[Socket] = []

    def start(**options: Any) -> Worker:
        worker = Worker(node(), **options)
        socket, worker.url = sockets()
        socket.app = worker
        used.append(socket)
        return worker

    yield start
    for socket in used:
        socket.app = None


@pytest.fixture
def secured(node: Callable[..., Node], tmp_path: Path) -> Iterator[tuple[Worker, Path]]:
    """A worker behind TLS, at https://localhost, and the certificate to trust."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = [openssl, "req", *kind, "-keyout", str(key), "-out", str(certificate), *name]
    subprocess.run(command, check=True, capture_output=True)
    worker = Worker(node())
    with running(worker, ssl_certfile=certificate, ssl_keyfile=key) as url:
        worker.url = url.replace("http://127.0.0.1", "https://localhost")
        yield worker, certificate


@pytest.fixture
def worker(serve: Callable[..., Worker]) -> Worker:
    return serve()


@pytest.fixture
def seen(checked_exports: Any) -> Any:
    """What the clients of a test have reported."""
    return checked_exports


@pytest.fixture
def chat() -> Iterator[Scope]:
    with session("chat-42") as scope:
        yield scope


@pytest.fixture
def propagator() -> Iterator[Callable[[TextMapPropagator], None]]:
    """Sets the global propagator for one test."""
    before = get_global_textmap()
    yield set_global_textmap
    set_global_textmap(before)
