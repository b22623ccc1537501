"""Behind nginx as most people run it: context gets through both ways, and so does the handshake when a base is lost."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.clients.dispatch import instrument
from otelctx.context.current import ContextKey, UpKey, session
from otelctx.exchange.node import Node
from otelctx.settings import Settings

pytestmark = pytest.mark.e2e
KEYS = "1:" + base64.b64encode(bytes(range(32))).decode()
TIER = ContextKey("e2e.proxy.tier", str)
SPENT = UpKey("e2e.proxy.spent", int, rule="sum")


class App:
    """Answers with what it sees of the context; keeps the frames it was sent."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.served = 0

    def entry(self) -> Any:
        """The application as a process that has just started would have it: with no base."""
        wrapped = ContextMiddleware(self._app, node=Node(Settings(keys=KEYS)))

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            self.frames += [value for name, value in scope["headers"] if name == b"otelctx"]
            await wrapped(scope, receive, send)

        return watched

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.served += 1
        SPENT.record(3)
        body = (TIER.get() or "none").encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(entry: Callable[..., Any]) -> Iterator[int]:
    config = uvicorn.Config(entry, port=0, lifespan="off", ws="none", log_config=None, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    sockets = [config.bind_socket()]
    sockets[0].listen()  # a connection that comes before the server's thread does waits, and is not refused
    thread = threading.Thread(target=server.run, kwargs={"sockets": sockets})
    thread.start()
    try:
        yield sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def test_context_goes_through_nginx_both_ways_and_survives_a_restart(start_nginx: Callable[[str], Any]) -> None:
    app = App()
    entries = [app.entry()]

    async def current(scope: Any, receive: Any, send: Any) -> None:
        await entries[-1](scope, receive, send)

    with serving(current) as port:
        nginx = start_nginx(f"location / {{ proxy_pass http://127.0.0.1:{port}; }}")
        with httpx.Client(trust_env=False, timeout=60) as plain, session("chat-1"), TIER.bound("gold"):
            client = instrument(plain, node=Node(Settings(keys=KEYS)))
            answers = [client.post(nginx.url, content=b"x").text for _ in range(6)]
            before = len(app.frames)
            entries.append(app.entry())  # a restart: all bases are gone
            answers.append(client.post(nginx.url, content=b"x").text)
            spent = SPENT.get()
    assert answers == ["gold"] * 7
    assert spent == 7 * 3
    assert len(app.frames[before - 1]) < len(app.frames[0]), "a REF is shorter than a FULL"
    assert len(app.frames) - before == 2, "refused for want of a base, and sent again once"
    assert app.served == 7, "a refused request does not reach the application"
