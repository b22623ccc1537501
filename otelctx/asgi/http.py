"""One HTTP request through the application: its response head, the ways it can fail, and its end."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import StatusCode

import otelctx.semconv as semconv
from otelctx.asgi.answer import drained, error_answer, respond
from otelctx.asgi.entry import Entry
from otelctx.asgi.options import Options
from otelctx.asgi.recording import Recording
from otelctx.asgi.stream import START, Progress
from otelctx.asgi.types import App, Message, Receive, Scope, Send
from otelctx.errors import OtelctxError
from otelctx.telemetry.http import error_type, record_exception
from otelctx.telemetry.instruments import Sinks

__all__ = ["HttpRequest", "is_cancellation", "is_disconnect"]

INCOMPLETE: Final = "incomplete_response"
_GONE: Final = frozenset({"ClientDisconnect", "ClientDisconnected", "WebSocketDisconnect"})


def is_cancellation(error: BaseException) -> bool:
    """Of asyncio, trio or a coroutine that is closed: whoever asked for it knows, so it is no error."""
    return not isinstance(error, Exception | KeyboardInterrupt | SystemExit | BaseExceptionGroup)


def is_disconnect(error: BaseException) -> bool:
    """How servers and frameworks say that the client has gone."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_disconnect(inner) or is_cancellation(inner) for inner in error.exceptions)
    return isinstance(error, OSError) or type(error).__name__ in _GONE


class HttpRequest(Progress):
    """One request and the progress of its response. Without ``sinks`` the context flows and nothing is recorded."""

    __slots__ = (
        "_cancelled",
        "_disconnected",
        "_entry",
        "_error",
        "_options",
        "_receive",
        "_recording",
        "_scope",
        "_send",
        "_unheard",
        "context",
    )

    def __init__(
        self, options: Options, scope: Scope, receive: Receive, send: Send, entry: Entry, sinks: Sinks | None
    ) -> None:
        super().__init__()
        self._options = options
        self._scope = scope
        self._receive = receive
        self._send = send
        self._entry = entry
        self._recording = recording = None if sinks is None else Recording(options, scope, entry, sinks)
        if options.extras is not None and recording is not None:
            self._receive, self._send = recording.counted(receive, send)
        self.context: Context = entry.inside(None) if recording is None else recording.context
        if recording is not None and not recording.kept:  # not sampled, and not measured either
            self._recording = None
        self._disconnected = False
        self._cancelled = False
        self._unheard = False
        self._error: str | None = None

    async def run(self, app: App) -> None:
        entry = self._entry
        if entry.exchange.outcome != "none":
            entry.report(self._options, None if self._recording is None else self._recording.span, self.context)
        try:
            if entry.refused:
                await self._refuse()
            elif self._recording is None:
                await app(self._scope, self._receive, self.relay)
            else:
                await app(self._scope, self.receive, self.send)
        except OtelctxError as error:
            if error.status is None or self.status is not None:
                self._failed(error)
                raise
            self._error = error_type(error) if error.status >= 500 else None
            await respond(self.send, *error_answer(error))
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            self._close()

    async def _refuse(self) -> None:
        status, headers, body = self._entry.exchange.refusal()
        lines = list(headers)
        read = await drained(self._scope, self._receive)
        if not read and self._scope.get("http_version", "1.1").startswith("1"):
            lines.append((b"connection", b"close"))
        await respond(self.send, status, lines, body)

    # the application's two callables

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.complete:
            self._disconnected = True
            self._unheard = self.status is None
        return message

    async def send(self, message: Message) -> None:
        if self.chunks and message.get("more_body"):  # almost every message of a stream
            self.chunks += 1
            try:
                await self._send(message)
            except OSError:
                self._disconnected = True
                raise
            return
        if self.status is None and message["type"] == START:
            message = self._head(message)
            complete = self.see(message)
        elif (complete := self.see(message)) or self.chunks == 1:
            self._tell(complete)
        try:
            await self._send(message)
        except OSError:
            self._disconnected = True
            raise
        if complete:
            self._sent()

    def _tell(self, complete: bool) -> None:
        """What can be told before the first byte of the body is sent, and before the last one."""
        recording = self._recording
        if recording is not None:
            if not complete:
                recording.first_byte()
            elif self._options.join:
                recording.ahead(self)

    def _sent(self) -> None:
        recording = self._recording
        if recording is not None:
            recording.last_byte()
            if self._error is None and (self.status or 0) < 500:
                # Now, and not when the application returns: what it does after the last byte is not this request. A 5xx
                # waits, because the exception behind it is only seen when it comes out of the application.
                recording.finish(self, self.status, None, self._disconnected)

    def relay(self, message: Message) -> Awaitable[None]:
        """:meth:`send` where nothing is recorded."""
        if self.status is None and message["type"] == START:
            message = self._head(message)
            self.status = message["status"]
        return self._send(message)

    def _head(self, message: Message) -> Message:
        given = message.get("headers")
        headers = given if type(given) is list else list(given or ())
        lines = self._entry.head(self._options, self._scope["method"], headers)
        if self._options.extras is not None and self._recording is not None:
            self._options.extras.answered(self._recording.span, lines)
        return message if lines is headers else {**message, "headers": lines}

    # the end

    def _failed(self, error: BaseException) -> None:
        recording = self._recording
        if is_cancellation(error):
            if not self.complete:
                self._cancelled = self._disconnected = True
        elif recording is not None and not (self._disconnected and is_disconnect(error)):
            self._error = error_type(error)
            # An instrumentation around us records what comes out, and one inside has recorded it.
            if not self._options.outer and recording.span.recorded is not error:
                record_exception(recording.span, error)
            if recording.finished:  # work after the last byte: on the span of its own that it gets
                recording.span.set_attribute(semconv.ERROR_TYPE, self._error)
                recording.span.set_status(StatusCode.ERROR)

    def _close(self) -> None:
        recording = self._recording
        if recording is None:
            return
        if recording.finished:
            recording.span.close()
            return
        status, error = self.status, self._error
        if self._unheard and error is None:
            # What a layer further in makes of a client that has left is a 5xx to some: nobody has received it.
            status = None
        if status is None and not self._cancelled:
            # Nobody answered; the server or a layer further out says 500.
            status = None if self._disconnected and error is None else 500
        if error is None:
            if status is not None and status >= 500:
                error = str(status)
            elif not self.complete and not self._disconnected:
                error = INCOMPLETE
        recording.finish(self, status, error, self._disconnected)
        recording.span.close()
