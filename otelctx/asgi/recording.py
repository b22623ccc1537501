"""The telemetry of one HTTP request: its SERVER span and its point in ``http.server.request.duration``, once each."""

from __future__ import annotations

from time import perf_counter, time_ns
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

import otelctx.semconv as semconv
from otelctx.asgi.attributes import start_attributes
from otelctx.asgi.entry import Entry
from otelctx.asgi.options import Options
from otelctx.asgi.route import route_of
from otelctx.asgi.server_span import ServerSpan
from otelctx.asgi.sizes import Sizes
from otelctx.asgi.stream import Progress
from otelctx.asgi.types import Receive, Scope, Send
from otelctx.telemetry.http import method_names, protocol_version, scheme_name
from otelctx.telemetry.instruments import Instruments, Sinks

__all__ = ["Recording", "open_span"]


def open_span(
    options: Options, scope: Scope, entry: Entry, own: Tracer, method: str, name: str
) -> tuple[Span, ServerSpan, Context]:
    """Start the SERVER span, or join the current one, and put it into the Context that the application gets."""
    if options.join:
        span = trace.get_current_span()
    else:
        attributes = start_attributes(scope, entry.inbound, method, entry.client)
        entry.describe(attributes)
        if options.extras is not None:
            options.extras.arrived(entry.inbound, attributes)
        span = own.start_span(name, entry.context, SpanKind.SERVER, attributes, entry.links)
    seen = ServerSpan(span)
    return span, seen, entry.inside(seen)


class Recording:
    """Started with the request, finished exactly once, on whichever path it leaves."""

    __slots__ = (
        "_bucket",
        "_ended_at",
        "_entry",
        "_first_byte",
        "_instruments",
        "_method",
        "_name",
        "_options",
        "_scheme",
        "_scope",
        "_sizes",
        "_span",
        "_started",
        "_tracer",
        "context",
        "duration",
        "finished",
        "span",
    )

    def __init__(self, options: Options, scope: Scope, entry: Entry, sinks: Sinks) -> None:
        self._started = perf_counter()
        self._options = options
        self._scope = scope
        self._entry = entry
        self._method, self._name = method_names(scope.get("method", "GET"))
        self._scheme = scheme_name(scope.get("scheme", "http"))
        self._tracer = sinks.tracer
        self._instruments: Instruments | None = sinks.instruments if options.metrics else None
        self._span, self.span, self.context = open_span(options, scope, entry, sinks.tracer, self._method, self._name)
        self._bucket: set[object] | None = None
        if self._instruments is not None:
            self._bucket = self._instruments.active.bucket(self._method, self._scheme)
            self._bucket.add(self)
        self._sizes: Sizes | None = None
        self._first_byte: float | None = None
        self._ended_at: int | None = None
        self.duration: float | None = None
        self.finished = False

    @property
    def kept(self) -> bool:
        """Whether anything of it is: the span is recording, or there are metrics."""
        return self._instruments is not None or self._span.is_recording()

    def counted(self, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """The server's callables, with what goes through them counted if that was asked for."""
        extras = self._options.extras
        if extras is None or not extras.body_sizes:
            return receive, send
        self._sizes = Sizes(receive, send, self._method)
        return self._sizes.receive, self._sizes.send

    def first_byte(self) -> None:
        if self._first_byte is None:
            self._first_byte = perf_counter() - self._started

    def ahead(self, progress: Progress) -> None:
        """Say what is known before the last byte goes out: whoever has made a joined span may end it with that."""
        status = progress.status
        if self._span.is_recording():
            error = str(status) if status is not None and status >= 500 else None
            self._describe(progress, status, error, self.span.route or route_of(self._scope), False)

    def last_byte(self) -> None:
        """The response is complete: the duration is settled, even if the span is finished later."""
        self.duration = perf_counter() - self._started
        self._ended_at = time_ns()

    def finish(self, progress: Progress, status: int | None, error: str | None, disconnected: bool) -> None:
        """End the span and record the duration. ``error`` is ``error.type``; a second call does nothing."""
        if self.finished:
            return
        self.finished = True
        duration = self.duration if self.duration is not None else perf_counter() - self._started
        route = self.span.route or route_of(self._scope)
        if self._instruments is not None and self._bucket is not None:
            self._bucket.discard(self)
            point = self._point(status, error, route)
            if self._options.extras is not None:
                self._options.extras.locate(self._entry.inbound, point)
                if self._sizes is not None:
                    self._options.extras.measured(self._instruments, self._sizes, point, self.context)
            self._instruments.http_server_duration.record(duration, point, self.context)
        if self._span.is_recording():
            self._describe(progress, status, error, route, disconnected)
        if not self._options.join:
            self._span.end(self._ended_at)
            self.span.ended(self._tracer, self._name if route is None else f"{self._name} {route}", self._entry.session)

    def _point(self, status: int | None, error: str | None, route: str | None) -> dict[str, Any]:
        point: dict[str, Any] = {
            semconv.HTTP_REQUEST_METHOD: self._method,
            semconv.URL_SCHEME: self._scheme,
        }
        if version := protocol_version(self._scope.get("http_version")):
            point[semconv.NETWORK_PROTOCOL_VERSION] = version
        if status is not None:
            point[semconv.HTTP_RESPONSE_STATUS_CODE] = status
        if route is not None:
            point[semconv.HTTP_ROUTE] = route
        if error is not None:
            point[semconv.ERROR_TYPE] = error
        return point

    def _describe(
        self, progress: Progress, status: int | None, error: str | None, route: str | None, disconnected: bool
    ) -> None:
        span = self._span
        # Given at the start too; again, because an SDK that is over its attribute limit drops the oldest.
        values: dict[str, Any] = self._entry.session()
        if status is not None:
            values[semconv.HTTP_RESPONSE_STATUS_CODE] = status
        if route is not None:
            values[semconv.HTTP_ROUTE] = route
            if not self._options.join:
                span.update_name(f"{self._name} {route}")
        if progress.chunks > 1:
            values[semconv.CHUNKS] = progress.chunks
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
        if len(values) <= 3:  # a few cost less one by one
            for key, value in values.items():
                span.set_attribute(key, value)
        else:
            span.set_attributes(values)
