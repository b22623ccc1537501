"""The telemetry of one HTTP request: its SERVER span and its point in ``http.server.request.duration``, once each."""

from __future__ import annotations

from time import perf_counter, time_ns
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

import otelctx.semconv as semconv
from otelctx.asgi.attributes import Kind, kind_of, start_attributes
from otelctx.asgi.entry import Entry
from otelctx.asgi.options import Options
from otelctx.asgi.route import route_of
from otelctx.asgi.server_span import ServerSpan
from otelctx.asgi.sizes import Sizes
from otelctx.asgi.stream import Progress
from otelctx.asgi.types import Receive, Scope, Send
from otelctx.telemetry.failure import broken
from otelctx.telemetry.session import session_attributes
from otelctx.telemetry.sinks import Sinks

__all__ = ["Recording", "open_span"]

_SERVER: Final = SpanKind.SERVER  # to look up a member of an enum takes as long as to call a function


def open_span(options: Options, scope: Scope, entry: Entry, own: Tracer, kind: Kind, *, unseen: bool = False) -> Span:
    """Start the SERVER span, or join the current one. ``unseen``: nobody will look at its attributes."""
    if options.join:
        return trace.get_current_span()
    if unseen:
        return own.start_span(kind.name, entry.context, _SERVER, None, entry.links)
    attributes = start_attributes(kind, scope, entry.client)
    if entry.told:
        entry.describe(attributes)
    if options.extras is not None:
        options.extras.arrived(entry.inbound, attributes)
    return own.start_span(kind.name, entry.context, _SERVER, attributes, entry.links)


class Recording(Progress):
    """Started with the request, finished exactly once, on whichever path it leaves."""

    __slots__ = (
        "_bucket",
        "_ended_at",
        "_entry",
        "_error",
        "_first_byte",
        "_kind",
        "_options",
        "_receive",
        "_scope",
        "_send",
        "_sinks",
        "_sizes",
        "_span",
        "_started",
        "context",
        "duration",
        "finished",
        "span",
    )

    def __init__(
        self, options: Options, scope: Scope, receive: Receive, send: Send, entry: Entry, sinks: Sinks
    ) -> None:
        super().__init__()
        self._started = perf_counter()
        self._options = options
        self._scope = scope
        self._receive = receive
        self._send = send
        self._entry = entry
        self._sinks = sinks
        self._kind = kind = kind_of(scope, entry.inbound)
        unseen = sinks.drops.by(entry.context)
        self._span = span = open_span(options, scope, entry, sinks.tracer, kind, unseen=unseen)
        self.span = seen = ServerSpan(span)
        self.context: Context = entry.inside(seen)
        self._bucket: set[object] | None = None  # where it counts as active, if there are metrics
        if not sinks.mute:
            self._bucket = bucket = sinks.instruments.active.bucket(kind.method, kind.scheme)
            bucket.add(self)
        self._sizes: Sizes | None = None
        if options.extras is not None and options.extras.body_sizes:
            self._sizes = Sizes(receive, send, kind.method)
            self._receive, self._send = self._sizes.receive, self._sizes.send
        self._error: str | None = None
        self._first_byte: float | None = None
        self._ended_at: int | None = None
        self.duration: float | None = None
        self.finished = False

    @property
    def kept(self) -> bool:
        """Whether anything of it is: the span is recording, or there are metrics."""
        return self._bucket is not None or self._span.is_recording()

    def first_byte(self) -> None:
        if self._first_byte is None:
            self._first_byte = perf_counter() - self._started

    def ahead(self) -> None:
        """Say what is known before the last byte goes out: whoever has made a joined span may end it with that."""
        status = self.status
        if self._span.is_recording():
            error = str(status) if status is not None and status >= 500 else None
            self._describe(status, error, self.span.route or route_of(self._scope), False)

    def last_byte(self) -> None:
        """The response is complete: the duration is settled, even if the span is finished later."""
        self.duration = perf_counter() - self._started
        self._ended_at = time_ns()
        if self._error is None and (self.status or 0) < 500:
            # Now, and not when the application returns: what it does after the last byte is not this request. A 5xx
            # waits, because the exception behind it is only seen when it comes out of the application.
            self.finish(self.status, None)

    def finish(self, status: int | None, error: str | None) -> None:
        """End the span and record the duration. ``status`` is ``None`` or 0 where there is none to tell, ``error`` is
        ``error.type``; a second call does nothing."""
        if self.finished:
            return
        self.finished = True
        duration = self.duration if self.duration is not None else perf_counter() - self._started
        route = self.span.route or route_of(self._scope)
        if self._bucket is not None:
            self._bucket.discard(self)
            try:
                self._measure(duration, status, error, route)
            except Exception as raised:  # of a meter that is not the SDK's
                broken("a measurement", raised)
        recorded = self._span.is_recording()
        if recorded:
            self._describe(status, error, route, self.disconnected)
        if not self._options.join:
            try:
                self._span.end(self._ended_at)
            except Exception as raised:  # a span processor's
                broken("the end of a span", raised)
            if recorded:
                name = self._kind.name
                self.span.ended(self._sinks.tracer, name if route is None else f"{name} {route}", self._entry.scope)

    def _measure(self, duration: float, status: int | None, error: str | None, route: str | None) -> None:
        point: dict[str, Any] = self._kind.point.copy()
        if status:
            point[semconv.HTTP_RESPONSE_STATUS_CODE] = status
        if route is not None:
            point[semconv.HTTP_ROUTE] = route
        if error is not None:
            point[semconv.ERROR_TYPE] = error
        instruments, extras = self._sinks.instruments, self._options.extras
        if extras is not None:
            extras.locate(self._entry.inbound, point)
            if self._sizes is not None:
                extras.measured(instruments, self._sizes, point, self.context)
        instruments.http_server_duration.record(duration, point, self.context)

    def _describe(self, status: int | None, error: str | None, route: str | None, disconnected: bool) -> None:
        span = self._span
        # Given at the start too; again, because an SDK that is over its attribute limit drops the oldest.
        values = session_attributes(self._entry.scope.state.session_id)
        if status:
            values[semconv.HTTP_RESPONSE_STATUS_CODE] = status
        if route is not None:
            values[semconv.HTTP_ROUTE] = route
            if not self._options.join:
                span.update_name(f"{self._kind.name} {route}")
        if self.chunks > 1:
            values[semconv.CHUNKS] = self.chunks
            if self._first_byte is not None:
                values[semconv.TIME_TO_FIRST_BYTE] = self._first_byte
        if self._sizes is not None:
            values[semconv.HTTP_REQUEST_BODY_SIZE] = self._sizes.received
            values[semconv.HTTP_RESPONSE_BODY_SIZE] = self._sizes.sent
        if disconnected:
            values[semconv.DISCONNECTED] = True
        if error is not None:
            values[semconv.ERROR_TYPE] = error
            span.set_status(StatusCode.ERROR)
        if len(values) <= 2:  # a few cost less one by one
            for key, value in values.items():
                span.set_attribute(key, value)
        else:
            span.set_attributes(values)
