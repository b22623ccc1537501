"""One websocket: a SERVER span for the handshake and a linked one for the connection.

A connection lasts for hours. A span of its own trace, linked to the handshake, keeps the handshake's trace whole and
lets a sampler decide; messages are counted, never given spans.
"""

from __future__ import annotations

from time import time

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

import otelctx.semconv as semconv
from otelctx.asgi.attributes import kind_of
from otelctx.asgi.entry import Entry
from otelctx.asgi.http import is_cancellation, is_disconnect
from otelctx.asgi.options import Options
from otelctx.asgi.recording import open_span
from otelctx.asgi.route import route_of
from otelctx.asgi.server_span import ServerSpan
from otelctx.asgi.stream import status_code
from otelctx.asgi.types import Message, Receive, Scope, Send
from otelctx.telemetry.failure import end, start
from otelctx.telemetry.http import error_type, record_exception
from otelctx.telemetry.session import session_attributes
from otelctx.telemetry.sinks import Sinks

__all__ = ["WebSocket"]

_SWITCHING = 101
_REFUSED = 403  # what a server answers for a close before the accept
_INTERNAL_ERROR = 1011


def _close_code(given: object) -> int | None:
    """``None`` for what does not fit the two bytes that the protocol has for it."""
    return int(given) if isinstance(given, int) and 0 <= given < 65536 else None


class Connection:
    """The spans of one websocket, each ended once."""

    __slots__ = (
        "_connection",
        "_ended",
        "_entry",
        "_name",
        "_options",
        "_scope",
        "_server",
        "_tracer",
        "close_code",
        "context",
        "received",
        "sent",
        "span",
    )

    def __init__(self, options: Options, scope: Scope, entry: Entry, sinks: Sinks) -> None:
        self._options, self._scope, self._entry = options, scope, entry
        self._tracer = sinks.tracer
        self._server = open_span(options, scope, entry, sinks.tracer, kind_of(scope, entry.inbound))
        self.span = ServerSpan(self._server)
        self.context: Context = entry.inside(self.span)
        self._connection: Span | None = None
        self._name = "GET"
        self._ended = False
        self.close_code: int | None = None
        self.received = self.sent = 0

    def handshake(self, status: int | None, error: str | None = None, disconnected: bool = False) -> None:
        """The handshake has been answered with ``status``, 0 for one that is none, or not at all."""
        if self._ended:
            return
        self._ended = True
        span, route = self._server, self.span.route or route_of(self._scope)
        values = session_attributes(self._entry.scope.state.session_id)
        if status:
            values[semconv.HTTP_RESPONSE_STATUS_CODE] = status
        if disconnected:
            values[semconv.DISCONNECTED] = True
        if route is not None:
            values[semconv.HTTP_ROUTE] = route
        if error is not None:
            values[semconv.ERROR_TYPE] = error
            span.set_status(StatusCode.ERROR)
        span.set_attributes(values)
        if self._options.join:
            return
        if route is not None:
            self._name = f"GET {route}"
            span.update_name(self._name)
        if status != _SWITCHING:
            self._finish(span)
            return
        end(span)
        name = "websocket" if route is None else f"websocket {route}"
        link = Link(span.get_span_context())
        self._connection = start(self._tracer, name, Context(), SpanKind.INTERNAL, values, link)
        self.span.hand_over(self._connection)

    def close(self, error: str | None) -> None:
        """The application has returned; ``error`` is the ``error.type`` of the connection, if there was one."""
        if self._connection is not None:
            self._end(self._connection, error)
        self.span.close()

    def _end(self, span: Span, error: str | None) -> None:
        values = session_attributes(self._entry.scope.state.session_id)
        values[semconv.MESSAGES_RECEIVED] = self.received
        values[semconv.MESSAGES_SENT] = self.sent
        if self.close_code is not None:
            values[semconv.CLOSE_CODE] = self.close_code
        if error is not None:
            values[semconv.ERROR_TYPE] = error
            span.set_status(StatusCode.ERROR)
        span.set_attributes(values)
        self._finish(span)

    def _finish(self, span: Span) -> None:
        recorded = span.is_recording()
        end(span)
        if recorded:
            self.span.ended(self._tracer, self._name, self._entry.scope)


class WebSocket:
    """Drives one connection. Without ``sinks`` it has no :class:`Connection`: nothing is recorded."""

    __slots__ = (
        "_accepted",
        "_answered",
        "_entry",
        "_error",
        "_gone",
        "_options",
        "_receive",
        "_scope",
        "_seen",
        "_send",
        "context",
    )

    def __init__(
        self, options: Options, scope: Scope, receive: Receive, send: Send, entry: Entry, sinks: Sinks | None
    ) -> None:
        self._options = options
        self._scope = scope
        self._receive = receive
        self._send = send
        self._entry = entry
        self._seen = None if sinks is None else Connection(options, scope, entry, sinks)
        self.context: Context = entry.inside(None) if self._seen is None else self._seen.context
        self._accepted = self._answered = self._gone = False
        self._error: str | None = None

    @property
    def span(self) -> Span | None:
        return None if self._seen is None else self._seen.span

    async def refuse(self) -> None:
        await self.receive()  # the server's connect
        status, headers, body = self._entry.exchange.refusal(time())
        if "websocket.http.response" not in (self._scope.get("extensions") or {}):
            await self.send({"type": "websocket.close", "code": 1008})  # becomes a 403: not understood, but refused
            return
        await self.send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await self.send({"type": "websocket.http.response.body", "body": body})

    def failed(self, error: BaseException) -> None:
        """``error`` came out of the application; it goes on its way."""
        if is_cancellation(error):
            self._gone = True
        elif not (self._gone and is_disconnect(error)):
            if self._seen is not None and not self._options.outer and self._seen.span.recorded is not error:
                record_exception(self._seen.span, error)
            self._error = error_type(error)

    def close(self) -> None:
        """The application has returned, or failed."""
        seen, error = self._seen, self._error
        if seen is None:
            return
        if not self._answered:
            # The application has left without a word: servers answer 500, unless nobody is there to be answered.
            gone = self._gone and error is None
            seen.handshake(None if gone else 500, error or (None if gone else "500"), disconnected=gone)
        elif error is not None and not self._accepted:  # work after a denial: on the span of its own that it gets
            seen.span.failed(error)
        if error is None and seen.close_code == _INTERNAL_ERROR:
            error = str(_INTERNAL_ERROR)
        seen.close(error)

    # the application's two callables

    async def receive(self) -> Message:
        message = await self._receive()
        seen = self._seen
        if message["type"] == "websocket.receive":
            if seen is not None:
                seen.received += 1
        elif message["type"] == "websocket.disconnect":
            self._gone = True
            if seen is not None and seen.close_code is None:
                seen.close_code = _close_code(message.get("code", 1005))
        return message

    async def send(self, message: Message) -> None:
        kind, seen = message["type"], self._seen
        if kind in ("websocket.accept", "websocket.http.response.start"):
            message = self._entry.head(self._options, "GET", message)
            if self._options.extras is not None and seen is not None:
                self._options.extras.answered(seen.span, message["headers"])
        if kind == "websocket.close" and self._accepted and seen is not None and seen.close_code is None:
            # Before it is sent: a server may tell a task that receives of the end, with a code of its own, at once.
            seen.close_code = _close_code(message.get("code", 1000))
        try:
            await self._send(message)
        except OSError:
            self._gone = True
            raise
        if seen is not None:
            self._sent(seen, kind, message)

    def _sent(self, seen: Connection, kind: str, message: Message) -> None:
        if kind == "websocket.send":
            seen.sent += 1
        elif kind == "websocket.accept":
            self._accepted = self._answered = True
            seen.handshake(_SWITCHING)
        elif kind == "websocket.http.response.start":
            self._answered = True
            status = status_code(message.get("status"))
            seen.handshake(status, str(status) if status >= 500 else None)
        elif kind == "websocket.close" and not self._answered:
            self._answered = True
            seen.handshake(_REFUSED)
