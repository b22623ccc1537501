"""One HTTP request through the application: its response head, the ways it can fail, and its end."""

from __future__ import annotations

from typing import Final

from otelctx.asgi.answer import Answer, answer_to, refuse
from otelctx.asgi.entry import Entry
from otelctx.asgi.headers import without_ours
from otelctx.asgi.options import Options
from otelctx.asgi.quiet import Quiet
from otelctx.asgi.recording import Recording
from otelctx.asgi.stream import START, TRAILERS
from otelctx.asgi.types import Message, Receive, Scope, Send
from otelctx.telemetry.http import error_type, record_exception
from otelctx.telemetry.sinks import Sinks

__all__ = ["HttpRequest", "begin", "is_cancellation", "is_disconnect"]

INCOMPLETE: Final = "incomplete_response"
_GONE: Final = frozenset({"ClientDisconnect", "ClientDisconnected", "WebSocketDisconnect"})


def is_cancellation(error: BaseException) -> bool:
    """Of asyncio, trio or a coroutine that is closed: whoever asked for it knows, so it is no error. Trio makes a group
    of several."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_cancellation(inner) for inner in error.exceptions)
    return not isinstance(error, Exception | KeyboardInterrupt | SystemExit)


def is_disconnect(error: BaseException) -> bool:
    """How servers and frameworks say that the client has gone."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_disconnect(inner) or is_cancellation(inner) for inner in error.exceptions)
    return isinstance(error, OSError) or type(error).__name__ in _GONE


def begin(
    options: Options, scope: Scope, receive: Receive, send: Send, entry: Entry, sinks: Sinks | None
) -> HttpRequest | Quiet:
    """The request; without ``sinks`` the context flows and nothing is recorded."""
    if sinks is None:
        return Quiet(options, scope, receive, send, entry, entry.inside(None))
    request = HttpRequest(options, scope, receive, send, entry, sinks)
    if sinks.mute and not request.kept:  # not sampled, and not measured either
        return Quiet(options, scope, receive, send, entry, request.context)
    return request


class HttpRequest(Recording):
    """One request that is recorded, as it passes between server and application."""

    __slots__ = ()

    async def refuse(self) -> None:
        """Answer in the application's stead that its frame is not understood."""
        await refuse(self._scope, self._receive, self.send, self._entry.exchange)

    # the application's two callables

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.complete:
            self.disconnected = True
            self.unheard = self.status is None
        return message

    async def send(self, message: Message) -> None:
        if self.chunks and message.get("more_body"):  # almost every message of a stream
            self.chunks += 1
            try:
                return await self._send(message)
            except OSError:
                self.disconnected = True
                raise
        if message["type"] == TRAILERS:
            message = without_ours(message)
        complete = False
        if self.status is None and message["type"] == START:
            self.start(message)
            message = self._entry.head(self._options, self._scope["method"], message)
            if self._options.extras is not None:
                self._options.extras.answered(self.span, message["headers"])
        elif complete := self.see(message):
            if self._options.join:
                self.ahead()
        elif self.chunks == 1:
            self.first_byte()
        try:
            await self._send(message)
        except OSError:
            self.disconnected = True
            raise
        if complete:
            self.last_byte()

    # the end

    def failed(self, error: BaseException) -> Answer | None:
        """What to answer for ``error`` in the application's stead; ``None``: it goes on its way."""
        if self.status is None and (answer := answer_to(error)) is not None:
            self._error = error_type(error) if answer[0] >= 500 else None
            return answer
        if is_cancellation(error):
            if not self.complete:
                self.cancelled = self.disconnected = True
        elif not (self.disconnected and is_disconnect(error)):
            self._error = error_type(error)
            # An instrumentation around us records what comes out, and one inside has recorded it.
            if not self._options.outer and self.span.recorded is not error:
                record_exception(self.span, error)
            if self.finished:  # work after the last byte: on the span of its own that it gets
                self.span.failed(self._error)
        return None

    def close(self) -> None:
        """The application has returned, or failed."""
        if not self.finished:
            status, error = self.status, self._error
            if self.unheard and error is None:
                # What a layer further in makes of a client that has left is a 5xx to some: nobody has received it.
                status = None
            if status is None and not self.cancelled:
                # Nobody answered; the server or a layer further out says 500.
                status = None if self.disconnected and error is None else 500
            if error is None:
                if status is not None and status >= 500:
                    error = str(status)
                elif not self.complete and not self.disconnected:
                    error = INCOMPLETE
            self.finish(status, error)
        self.span.close()
