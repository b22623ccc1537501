"""Real servers on loopback: workers of every kind, gateways in front of them, and clients that say every byte."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.exchange.node import Node
from otelctx.gateway import Gateway, app
from otelctx.gateway.options import Options
from otelctx.gateway.server import EdgeServer, config
from otelctx.settings import Settings

KEYS = "1:" + base64.b64encode(bytes(range(32))).decode()
OTHER_KEYS = "7:" + base64.b64encode(bytes(32)).decode()
Handler = Callable[["Request"], Awaitable[None]]


@contextmanager
def running(server: uvicorn.Server) -> Iterator[str]:
    """Base URL of ``server`` in a thread; signals are left alone."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    vars(server)["capture_signals"] = nullcontext
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
        assert not thread.is_alive()


@dataclass
class Request:
    """One request at a worker. ``receive`` and ``send`` are ASGI's own."""

    scope: Any
    receive: Any
    send: Any
    body: bytes = b""

    @property
    def target(self) -> bytes:
        query = self.scope["query_string"]
        return bytes(self.scope["raw_path"] + (b"?" + query if query else b""))

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return list(self.scope["headers"])

    def values(self, name: str) -> list[str]:
        return [value.decode("latin-1") for key, value in self.headers if key == name.encode()]

    async def read(self) -> bytes:
        more = True
        while more:
            message = await self.receive()
            self.body += message.get("body", b"")
            more = message.get("more_body", False)
        return self.body

    async def start(self, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": headers or []})

    async def write(self, body: bytes, *, last: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": not last})

    async def answer(
        self, body: bytes = b"ok", status: int = 200, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        await self.start(status, [(b"content-length", str(len(body)).encode()), *(headers or [])])
        await self.write(body, last=True)


async def _ok(request: Request) -> None:
    await request.read()
    await request.answer()


@dataclass
class Worker:
    """``handler`` answers its requests; ``seen`` are those that came, checks left out."""

    url: str = ""
    handler: Handler = _ok
    sockets: Handler | None = None
    ready: int = 200
    seen: list[Request] = field(default_factory=list)
    forget: Callable[[Node], None] = lambda node: None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive, send)
        if scope["type"] == "websocket":
            assert self.sockets is not None
            self.seen.append(request)
            await self.sockets(request)
        elif scope["path"] == "/readyz":
            await request.answer(status=self.ready)
        else:
            self.seen.append(request)
            await self.handler(request)


@contextmanager
def working(aware: bool = False, node: Node | None = None, **traced: Any) -> Iterator[Worker]:
    worker = Worker()
    entries: list[Any] = [worker]

    def forget(node: Node) -> None:
        """Be the process that has just been started again: with no base."""
        entries.append(ContextMiddleware(worker, node=node, excluded="/readyz", **traced))

    worker.forget = forget
    if aware:
        forget(node or Node(Settings(keys=KEYS)))

    async def current(scope: Any, receive: Any, send: Any) -> None:
        await entries[-1](scope, receive, send)

    settings = uvicorn.Config(
        current, lifespan="off", ws="websockets-sansio", log_config=None, timeout_graceful_shutdown=0,
        reset_contextvars=True,
    )  # fmt: skip
    with running(uvicorn.Server(settings)) as worker.url:
        yield worker


@pytest.fixture(scope="module")
def lent() -> Iterator[list[Worker]]:
    """Two workers that know nothing of context, for a module's tests: starting one takes a fifth of a second."""
    with working() as one, working() as other:
        yield [one, other]


@pytest.fixture
def workers(lent: list[Worker]) -> list[Worker]:
    for worker in lent:
        worker.handler, worker.sockets, worker.ready, worker.seen = _ok, None, 200, []
    return lent


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(working(**options))


@dataclass
class Edge:
    """A gateway that runs."""

    url: str
    gateway: Gateway
    server: EdgeServer

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def talk(self, data: bytes, until: bytes | None = None, within: float = 60.0) -> bytes:
        """Send these bytes, and read until the connection ends, or ``until`` has come."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=within) as connection:
            with suppress(ConnectionError):
                connection.sendall(data)
            got = b""
            with suppress(ConnectionError):
                while (until is None or until not in got) and (piece := connection.recv(65536)):
                    got += piece
            return got


@contextmanager
def edging(
    upstreams: list[str], options: Options | None = None, settings: Settings | None = None, **traced: Any
) -> Iterator[Edge]:
    gateway = app(upstreams, options=options, node=Node(settings or Settings(keys=KEYS)), **traced)
    server = EdgeServer(config(gateway), gateway, 2.0, lambda: None)
    with running(server) as url:
        yield Edge(url, gateway, server)


@pytest.fixture
def edge() -> Iterator[Callable[..., Edge]]:
    """Start a gateway: ``edge(upstreams, options=…, settings=…)``."""
    with ExitStack() as stack:
        yield lambda upstreams, **options: stack.enter_context(edging(upstreams, **options))


@pytest.fixture(scope="module")
def shared(lent: list[Worker]) -> Iterator[Edge]:
    """One gateway in front of the first of the lent workers."""
    with edging([lent[0].url], Options(health_path="")) as made:
        yield made


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=60) as made:
        yield made


@pytest.fixture
def seen(checked_exports: Any) -> Any:
    """What a gateway and its workers have reported."""
    return checked_exports


class Scripted:
    """An upstream that says what it is told, byte for byte: ``script`` gets each connection."""

    def __init__(self, script: Callable[[socket.socket], None]) -> None:
        self.script = script
        self.connections = 0
        self._open: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open = connection
            with connection, suppress(OSError):
                connection.settimeout(60)
                self.script(connection)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        if self._open is not None:
            with suppress(OSError):
                self._open.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


@pytest.fixture
def scripted() -> Iterator[Callable[[Callable[[socket.socket], None]], Scripted]]:
    made: list[Scripted] = []

    def start(script: Callable[[socket.socket], None]) -> Scripted:
        made.append(Scripted(script))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def run_server() -> Callable[[uvicorn.Server], Any]:
    return running
