"""Answers that the middleware gives itself: an error of ours in OpenAI's shape, and the refusal of a frame."""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import time
from typing import Final

from otelctx.asgi.types import Headers, Message, Receive, Scope, Send
from otelctx.errors import OtelctxError
from otelctx.exchange.server import ServerExchange

__all__ = ["Answer", "answer_to", "error_answer", "refuse", "respond"]

Answer = tuple[int, Headers, bytes]

_MAX_DRAIN: Final = 65536  # bytes; what a client may resend, which is what it sends compact frames with


def answer_to(error: BaseException) -> Answer | None:
    """The answer to ``error`` if it is one of ours whose class has a status; ``None`` for any other one."""
    return error_answer(error) if isinstance(error, OtelctxError) and error.status is not None else None


def error_answer(error: OtelctxError) -> Answer:
    """Status, headers and body for an error whose class has a status."""
    body = json.dumps(error.body(), ensure_ascii=True, default=str).encode()
    headers = [(n.lower().encode("latin-1"), v.encode("latin-1", "replace")) for n, v in error.headers()]
    return error.status or 500, [(b"content-type", b"application/json"), *headers], body


async def respond(send: Send, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a whole response."""
    lines = [line for line in headers if line[0] != b"content-length"]
    lines.append((b"content-length", str(len(body)).encode()))
    start: Message = {"type": "http.response.start", "status": status, "headers": lines}
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def refuse(scope: Scope, receive: Receive, send: Send, exchange: ServerExchange) -> None:
    """Answer in the application's stead that the request's frame is not understood."""
    status, headers, body = exchange.refusal(time())
    lines = list(headers)
    read = await _drained(scope, receive)
    if not read and scope.get("http_version", "1.1").startswith("1"):
        lines.append((b"connection", b"close"))
    await respond(send, status, lines, body)


async def _drained(scope: Scope, receive: Receive) -> bool:
    """Read the request's body if it is small. ``False``: an HTTP/1 connection must be closed.

    A server that answers with a body unread on a connection that it keeps open makes the client fail; and Hypercorn
    drops an HTTP/2 connection with all its streams when a piece of a body comes after the response.
    """
    headers = {name.lower(): value for name, value in scope["headers"]}
    if b"transfer-encoding" in headers or b"expect" in headers:
        return False
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 9 or int(length) > _MAX_DRAIN:
        return False
    read = 0  # HTTP/2 need not say a length
    while read <= _MAX_DRAIN and (message := await receive())["type"] == "http.request":
        if not message.get("more_body", False):
            return True
        read += len(message.get("body", b""))
    return False
