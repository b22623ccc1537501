"""The called side of a :class:`~otelctx.testing.link_pair.LinkPair`: an application behind the real middleware, without
a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from otelctx.asgi.middleware import ContextMiddleware, exchange_of
from otelctx.asgi.types import App, Message, Receive, Scope, Send
from otelctx.context.current import current_scope
from otelctx.context.keys import Value
from otelctx.delta.messages import Ack
from otelctx.delta.receiver import NeedBase
from otelctx.exchange.known import Known
from otelctx.exchange.node import Client, Node, Received
from otelctx.testing.faults import Lines

__all__ = ["Drive", "Reply", "Request", "Worker", "answering", "by_hand", "on_a_loop"]

# Runs one request's coroutine to its end.
Drive = Callable[[Coroutine[Any, Any, None]], None]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrives. ``client`` is the address that it comes from."""

    method: str
    path: str
    headers: Lines
    body: bytes
    client: str


@dataclass(slots=True)
class Reply:
    """``outcome`` is that of :mod:`otelctx.exchange.server`; ``seen`` is ``None`` if the application did not run."""

    outcome: str = "refuse"
    seen: Mapping[str, Value] | None = None
    incomplete: bool = False
    status: int = 0
    headers: Lines = field(default_factory=list)
    body: bytes = b""


class Worker(Node):
    """A node whose clock is ``ahead`` seconds of the process's, since the middleware looks at that one."""

    ahead = 0.0

    def known(self, line: bytes | str, now: float) -> Known | None:
        return super().known(line, now + self.ahead)

    def receive(
        self, lines: Sequence[bytes | str], client: Client, now: float, *, may_wait: bool = False
    ) -> Received | NeedBase:
        return super().receive(lines, client, now + self.ahead, may_wait=may_wait)

    def answer(self, ack: Ack, signed: bool, now: float) -> str:
        return super().answer(ack, signed, now + self.ahead)

    def serve(self, app: App, request: Request, drive: Drive) -> Reply:
        """Have ``app`` answer ``request``. Raises what it raises."""
        reply = Reply()

        async def observed(scope: Scope, receive: Receive, send: Send) -> None:
            found, exchange = current_scope(), exchange_of(scope)
            if found is not None and exchange is not None:
                reply.outcome, reply.incomplete = exchange.outcome, found.incomplete
                reply.seen = dict(found.state)
            await app(scope, receive, send)

        middleware = ContextMiddleware(observed, node=self)
        drive(_request(middleware, request, reply))
        return reply


async def _request(app: App, request: Request, reply: Reply) -> None:
    path, _, query = request.path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers],
        "client": (request.client, 49152),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    bodies = iter((request.body,))
    answered = asyncio.Event()

    async def receive() -> Message:
        for body in bodies:
            return {"type": "http.request", "body": body, "more_body": False}
        await answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status, reply.headers = message["status"], list(message.get("headers") or ())
        elif message["type"] == "http.response.body":
            reply.body += message.get("body", b"")
            if not message.get("more_body", False):
                answered.set()

    await app(scope, receive, send)


def answering(handler: Callable[[], object]) -> App:
    """An application that calls ``handler``, and answers with nothing to be kept by a cache."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        handler()
        headers = [(b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return app


def by_hand(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run what never waits, in a contextvars Context of its own as a server does; also inside of a running loop."""
    try:
        Context().run(coroutine.send, None)
    except StopIteration:
        return
    coroutine.close()
    raise RuntimeError("an application that waits needs a loop")


def on_a_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run it on an event loop of its own, with a contextvars Context of its own. Raises ``RuntimeError`` inside of a
    running one."""
    if asyncio._get_running_loop() is not None:
        coroutine.close()
        raise RuntimeError("an event loop is running here already: await asyncio.to_thread(pair.asgi, app)")
    with asyncio.Runner() as runner:
        runner.run(coroutine, context=Context())
