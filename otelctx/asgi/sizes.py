"""How many bytes the bodies of one request and its response really had, as the server took and gave them.

``Content-Length`` is a stranger's word, is missing from every stream, and says nothing of a response that was cut off.
"""

from __future__ import annotations

import os
from typing import Any, Final

from otelctx.asgi.types import Message, Receive, Send

__all__ = ["Sizes"]

_BODY: Final = "http.response.body"


class Sizes:
    """Stands between the server's two callables and the middleware's, for one request.

    ``received`` are the bytes that the application has read, ``sent`` those that the server has accepted; of a HEAD
    request none are, whatever the application sends.
    """

    __slots__ = ("_head", "_receive", "_send", "received", "sent")

    def __init__(self, receive: Receive, send: Send, method: str) -> None:
        self._receive = receive
        self._send = send
        self._head = method == "HEAD"
        self.received = self.sent = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self.received += len(message.get("body") or b"")
        return message

    async def send(self, message: Message) -> None:
        await self._send(message)
        if not self._head:
            kind = message["type"]
            self.sent += len(message.get("body") or b"") if kind == _BODY else _of_file(kind, message)


def _of_file(kind: str, message: Message) -> int:
    """Bytes of a file that the server sends by itself; 0 for any other message."""
    try:
        if kind == "http.response.pathsend":
            return os.stat(message["path"]).st_size
        if kind == "http.response.zerocopysend":
            return _rest(message["file"], message.get("offset"), message.get("count"))
    except OSError:  # gone or no file: telemetry must not be what fails
        pass
    return 0


def _rest(file: Any, offset: int | None, count: int | None) -> int:
    if count is not None:
        return count
    number = file if isinstance(file, int) else file.fileno()
    return max(0, os.fstat(number).st_size - (offset or 0))
