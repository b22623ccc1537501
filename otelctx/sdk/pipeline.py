"""One way out of the process, watched: from the processor that queues to the exporter that sends.

Whatever is handed to it is delivered, waiting, or counted as dropped. The SDK's own objects are left in their places,
since a user may have made them; two of their methods are wrapped, and nothing is locked while another's code runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from itertools import count
from threading import Lock, local
from typing import Any, Final, Literal

from otelctx.semconv import TELEMETRY_DROP_REASON, TELEMETRY_SIGNAL
from otelctx.telemetry.instruments import instruments

__all__ = ["Pipeline", "Signal", "failing", "pipeline_of"]

Signal = Literal["traces", "metrics", "logs"]
Reason = Literal["queue_full", "export", "shutdown"]

_log = logging.getLogger(__name__)
_MARK: Final = "_otelctx_pipeline"
# The packages of OTLP's exporters, and how they speak it.
_OTLP: Final = {
    "opentelemetry.exporter.otlp.proto.grpc": "grpc",
    "opentelemetry.exporter.otlp.proto.http": "http/protobuf",
}
_exporting = local()


def failing(message: str) -> None:
    """Told by the exporters' loggers: what this thread is exporting right now has failed, at least for the moment."""
    told: Callable[[str], None] | None = getattr(_exporting, "failed", None)
    if told is not None:
        told(message)


def pipeline_of(exporter: Any) -> Pipeline | None:
    """The pipeline that watches ``exporter`` already."""
    found: Pipeline | None = getattr(exporter, "__dict__", {}).get(_MARK)
    return found


class Pipeline:
    """Watches ``exporter``, and the SDK's ``batch`` processor in front of it. Without one, and with ``direct``, what is
    exported is exported by the application's own thread.
    """

    def __init__(self, signal: Signal, exporter: Any, batch: Any = None, *, direct: bool = False) -> None:
        self.signal: Final = signal
        self.exporter: Final = exporter
        self.last_error: str | None = None
        self.delivered = 0
        self.dropped: Counter[str] = Counter()
        self._batch = batch
        self._direct = direct
        self._warned = False
        self._begin()
        self._inner: Callable[..., Any] = exporter.export
        setattr(exporter, _MARK, self)
        exporter.export = self._export
        if batch is not None:
            self._queue: Callable[[Any], None] = batch.emit
            batch.emit = self._emit

    def _begin(self) -> None:
        self._lock = Lock()
        self._emitted = count()
        self._looks = 0
        self._taken = self._flying = self._overflowed = 0
        self._over = False

    # where it goes

    @property
    def protocol(self) -> str | None:
        """``grpc`` or ``http/protobuf``; None of an exporter that does not speak OTLP."""
        module = type(self.exporter).__module__
        return next((protocol for name, protocol in _OTLP.items() if module.startswith(name)), None)

    @property
    def endpoint(self) -> str:
        """Where it sends, as the exporter has it; empty if it does not say."""
        return str(getattr(self.exporter, "_endpoint", ""))

    @property
    def name(self) -> str:
        """For people: the protocol, or the exporter's class."""
        return self.protocol or type(self.exporter).__name__

    def send(self, batch: Any, failed: Callable[[str], None]) -> bool:
        """Export ``batch`` uncounted; whether it was taken. ``failed`` is told of each failure as it happens."""
        before, _exporting.failed = getattr(_exporting, "failed", None), failed
        try:
            return _succeeded(self._inner(batch))
        finally:
            _exporting.failed = before

    # on the way out, in the application's or the SDK's threads

    def _emit(self, item: Any) -> None:
        if self._batch._shutdown:
            self.drop(1, "shutdown")
        waiting = self._batch._queue
        full = len(waiting) == waiting.maxlen
        self._queue(item)
        # Counted afterwards: what was taken or waits is never less than what was counted.
        next(self._emitted)
        if full:
            self._look_for_overflow()

    def _export(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        size = _size(batch)
        with self._lock:
            self._taken += size
            self._flying += size
        self._look_for_overflow()
        if self._direct:
            self._warn_if_waiting()
        before, _exporting.failed = getattr(_exporting, "failed", None), self._failed
        delivered = False
        try:
            result = self._inner(batch, *args, **kwargs)
            delivered = _succeeded(result)
            return result
        finally:
            _exporting.failed = before
            self._settle(size, delivered)

    def _failed(self, message: str) -> None:
        self.last_error = message

    def _settle(self, size: int, delivered: bool) -> None:
        with self._lock:
            self._flying -= size
            over = self._over
            if delivered and not over:
                self.delivered += size
        if not delivered and not over:
            self.last_error = self.last_error or "the exporter failed"
            self.drop(size, "export")

    def _look_for_overflow(self, *, last: bool = False) -> None:
        """A full queue drops its oldest without a word: what was handed over, and neither waits nor was taken."""
        batch = self._batch
        if batch is None:
            return
        with self._lock:
            # Between the queue and here, a batch is nowhere. That is so only while the SDK holds this lock of its own,
            # and ends only by taking ours.
            if self._over or (batch._export_lock.locked() and not self._flying and not last):
                return
            handed = next(self._emitted) - self._looks
            self._looks += 1
            lost = handed - self._taken - len(batch._queue) - self._overflowed
            if lost <= 0:
                return
            self._overflowed += lost
        self.drop(lost, "queue_full")

    def _warn_if_waiting(self) -> None:
        if self._warned or self.protocol is None:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self._warned = True
        _log.warning(
            "%s are exported one by one on the event loop, which stands still meanwhile, and for ten seconds if the "
            "collector is gone: use the SDK's Batch processor instead of its Simple one",
            self.signal,
        )

    def drop(self, items: int, reason: Reason) -> None:
        """Count ``items`` as lost."""
        if items:
            with self._lock:
                self.dropped[reason] += items
            attributes = {TELEMETRY_SIGNAL: self.signal, TELEMETRY_DROP_REASON: reason}
            instruments().telemetry_dropped.add(items, attributes)

    # at the end, and in a child

    def close(self) -> None:
        """Count what nobody has confirmed by now as dropped. It may still arrive: a batch under way is not called
        back.
        """
        self._look_for_overflow(last=True)
        with self._lock:
            if self._over:
                return
            self._over = True
            left = self._flying + (len(self._batch._queue) if self._batch is not None else 0)
        self.drop(left, "shutdown")

    def after_fork(self) -> None:
        """In a child: what the parent holds is the parent's."""
        over = self._over
        self._begin()
        self._over = over
        self.last_error, self.delivered, self.dropped = None, 0, Counter()


def _succeeded(result: Any) -> bool:
    # Three enumerations have this member; an exporter of somebody's own may return nothing.
    return getattr(result, "name", "SUCCESS") == "SUCCESS"


def _size(batch: Any) -> int:
    resources = getattr(batch, "resource_metrics", None)
    if resources is None:
        return len(batch)
    return sum(
        len(metric.data.data_points)
        for resource in resources
        for scope in resource.scope_metrics
        for metric in scope.metrics
    )
