"""The request's span as the application sees it: the SERVER span until it has ended, and a linked one after that.

Work after the last byte (background tasks, what a framework runs behind the response) still has the request's span in
its Context. A child of an ended span hangs in the air, and a tail sampler has long decided. So once the SERVER span has
ended, the first use of this one starts a span of a new trace that links to it; if nothing uses it, there is none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from threading import RLock
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Tracer
from opentelemetry.trace.status import Status, StatusCode
from opentelemetry.util.types import AttributeValue

import otelctx.semconv as semconv
from otelctx.context.scope import Scope
from otelctx.telemetry.failure import end, start
from otelctx.telemetry.session import session_attributes

__all__ = ["ServerSpan"]

_reviving = RLock()  # one for all: it happens seldom, and a lock for each request is not free
# What the start of a span calls, the SDK's own counters for one, may ask for the current span, which is this one: its
# own start would then wait for itself. And what another thread holds meanwhile may be what that start waits for.
_starting: Final[set[int]] = set()
_WAIT: Final = 0.5  # seconds


class ServerSpan(Span):
    """Stands in for ``span``. ``route`` is what :func:`otelctx.asgi.route.set_route` has named, ``recorded`` the
    exception that somebody inside has recorded last.
    """

    __slots__ = ("_background", "_closed", "_ended", "_target", "recorded", "route")

    def __init__(self, span: Span) -> None:
        self._target: Span | None = span
        self._ended: Span = span
        self._background: tuple[Tracer, str, Scope] | None = None
        self._closed = False
        self.route: str | None = None
        self.recorded: BaseException | None = None

    # for the middleware

    def hand_over(self, span: Span) -> None:
        """From now on this is ``span``: a websocket's connection after its handshake."""
        self._target = self._ended = span

    def ended(self, tracer: Tracer, name: str, scope: Scope) -> None:
        """The span, which was recording, has ended. The linked one is started by ``tracer``, named after ``name`` and
        given the session of ``scope``, if there is use for one. Nothing else of the request is held: who has its
        Context may keep it for hours.
        """
        self._background = (tracer, name, scope)
        self._target = None

    def failed(self, error: str) -> None:
        """Work after the last byte has failed with ``error``, an ``error.type``."""
        if self.is_recording():  # one that is joined may have ended
            self.set_attribute(semconv.ERROR_TYPE, error)
            self.set_status(StatusCode.ERROR)

    def close(self) -> None:
        """The application has returned: end the linked span, if there is one."""
        self._closed = True
        self.recorded = None  # its traceback leads back to here
        if self._background is not None and self._target is not None:
            with _reviving:  # another thread may just have seen that it is closed
                if self._target.is_recording():
                    self._over(self._target)

    def _over(self, span: Span) -> None:
        """The linked span ends; from now on there is its context for children, and nothing to record on."""
        end(span)
        self._target = NonRecordingSpan(span.get_span_context())

    def _span(self) -> Span:
        if self._background is None or not self._sampled():
            return NonRecordingSpan(self._ended.get_span_context())
        lock = _reviving
        if not lock.acquire(timeout=_WAIT):
            return NonRecordingSpan(self._ended.get_span_context())
        try:
            return self._target or self._revived(*self._background)
        finally:
            lock.release()

    def _revived(self, tracer: Tracer, name: str, scope: Scope) -> Span:
        link = Link(self._ended.get_span_context())
        if id(self) in _starting:
            return NonRecordingSpan(link.context)
        _starting.add(id(self))
        values = session_attributes(scope.state.session_id)
        try:
            self._target = target = start(tracer, f"{name} background", Context(), SpanKind.INTERNAL, values, link)
        finally:
            _starting.discard(id(self))
        if self._closed:  # a task that outlives the application's call: nobody is left to end it
            self._over(target)
        return self._target

    def _sampled(self) -> bool:
        return self._ended.get_span_context().trace_flags.sampled

    # as a span

    def get_span_context(self) -> SpanContext:
        return (self._target or self._span()).get_span_context()

    def is_recording(self) -> bool:
        # Asking must not start the linked span; it would record, though.
        target = self._target
        return not self._closed and self._sampled() if target is None else target.is_recording()

    def end(self, end_time: int | None = None) -> None:
        """Does nothing: the middleware ends the span that it has started."""

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        (self._target or self._span()).set_attribute(key, value)

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        (self._target or self._span()).set_attributes(attributes)

    def add_event(
        self, name: str, attributes: Mapping[str, AttributeValue] | None = None, timestamp: int | None = None
    ) -> None:
        (self._target or self._span()).add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        (self._target or self._span()).add_link(context, attributes)

    def update_name(self, name: str) -> None:
        (self._target or self._span()).update_name(name)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        (self._target or self._span()).set_status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, AttributeValue] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        if not self._closed:
            self.recorded = exception
        (self._target or self._span()).record_exception(exception, attributes, timestamp, escaped)

    def __getattr__(self, name: str) -> Any:
        # What an SDK's span has beyond the API: its name, attributes, status.
        if name.startswith("__") or name in ServerSpan.__slots__:  # not there, as in a copy that is being made
            raise AttributeError(name)
        target = self._target
        return getattr(self._ended if target is None or isinstance(target, NonRecordingSpan) else target, name)


def _after_fork() -> None:
    # Whoever was starting a span is not there in a child.
    global _reviving
    _reviving = RLock()
    _starting.clear()


os.register_at_fork(after_in_child=_after_fork)
