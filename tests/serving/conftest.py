"""A real server in a thread, and a client that speaks ASGI directly."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from otelctx.exchange.node import Node
from otelctx.inference.engines.base import Engine
from otelctx.serving import app
from otelctx.settings import Settings

Serve = Callable[..., AbstractContextManager[str]]


@contextmanager
def serve(engine: Engine, *, node: Node | None = None, **options: Any) -> Iterator[str]:
    """Base URL of a uvicorn that serves ``engine`` in a thread."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app(engine, node=node or Node(Settings()), **options),
        log_config=None,
        lifespan="on",
        ws="none",
        reset_contextvars=True,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def served() -> Serve:
    return serve


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, make_tiny: Callable[[], tuple[Any, Any]]) -> Path:
    """A directory with a random Llama and a byte-level tokenizer with a chat template: what ``serve`` takes."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    for part in make_tiny():
        part.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def direct() -> Callable[..., Any]:
    """``async with direct(engine) as client``: no sockets; the engine is started and closed as a lifespan would."""

    @asynccontextmanager
    async def client(engine: Engine, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        await engine.start()
        transport = httpx.ASGITransport(app(engine, node=Node(Settings()), **options), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as made:
            yield made
        await engine.close()

    return client


class Asgi:
    """One request, spoken to the application by hand: the test says when the client goes."""

    def __init__(
        self,
        application: Any,
        body: bytes,
        *,
        headers: dict[str, str] | None = None,
        path: str = "/v1/chat/completions",
        more: bool = False,
    ) -> None:
        """``more``: the rest of the body is never sent."""
        self.sent: list[dict[str, Any]] = []
        self.read = 0
        self._application = application
        self._messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": more}]
        self._gone = asyncio.Event()
        lines = {"content-length": str(len(body)), "content-type": "application/json"} | (headers or {})
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(n.lower().encode(), v.encode()) for n, v in lines.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }

    def vanish(self) -> None:
        self._gone.set()

    async def run(self) -> None:
        await self._application(self._scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._messages:
            self.read += 1
            return self._messages.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


@pytest.fixture(scope="session")
def asgi() -> type[Asgi]:
    return Asgi
