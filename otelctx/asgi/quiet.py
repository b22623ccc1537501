"""One HTTP request of which nothing is recorded: context flows, and headers and errors of ours are what they are."""

from __future__ import annotations

from collections.abc import Awaitable

from opentelemetry.context import Context

from otelctx.asgi.answer import Answer, answer_to, refuse
from otelctx.asgi.entry import Entry
from otelctx.asgi.headers import without_ours
from otelctx.asgi.options import Options
from otelctx.asgi.stream import START, TRAILERS
from otelctx.asgi.types import Message, Receive, Scope, Send

__all__ = ["Quiet"]


class Quiet:
    """Stands where an :class:`~otelctx.asgi.http.HttpRequest` would. ``receive`` is the server's own."""

    __slots__ = ("_entry", "_options", "_scope", "_send", "_started", "context", "receive")

    span = None

    def __init__(
        self, options: Options, scope: Scope, receive: Receive, send: Send, entry: Entry, context: Context
    ) -> None:
        self._options = options
        self._scope = scope
        self._send = send
        self._entry = entry
        self._started = False
        self.context = context
        self.receive = receive

    async def refuse(self) -> None:
        await refuse(self._scope, self.receive, self.send, self._entry.exchange)

    def send(self, message: Message) -> Awaitable[None]:
        if not self._started and message["type"] == START:
            self._started = True
            message = self._entry.head(self._options, self._scope["method"], message)
        elif message["type"] == TRAILERS:
            message = without_ours(message)
        return self._send(message)

    def failed(self, error: BaseException) -> Answer | None:
        return None if self._started else answer_to(error)

    def close(self) -> None:
        """There is nothing to end."""
