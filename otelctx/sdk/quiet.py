"""One clear warning when telemetry does not reach its collector, where the exporters would write a line each second."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Final

__all__ = ["Quiet"]

_log = logging.getLogger(__name__)
_FAILURES: Final = ("Transient error", "Failed to export")
# What follows from ending before an export under way has given up, and from the SDK's own end coming after ours.
_EXPECTED: Final = (
    "Shutdown in progress",
    "Exporter already shutdown",
    "shutdown can only be called once",
    "Can't shutdown multiple times",
    "A shutdown `MeterProvider` can not provide a `Meter`",
)
_LOGGERS: Final = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http._common",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.metrics._internal",
    "opentelemetry.sdk.metrics._internal.export",
)


class Quiet(logging.Filter):
    """A filter on the exporters' loggers. Delivery failures become one warning of ours in ``interval`` seconds; any
    other message passes once in that time. ``failed`` is called for each failure, in the exporter's thread.
    """

    def __init__(
        self, failed: Callable[[str], None], *, interval: float = 60.0, clock: Callable[[], float] = monotonic
    ) -> None:
        super().__init__()
        self._failed = failed
        self._interval = interval
        self._clock = clock
        self._lock = Lock()
        self._last: dict[str, float] = {}

    def install(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    def remove(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        template = str(record.msg)
        if template.startswith(_EXPECTED):
            return False
        if not template.startswith(_FAILURES):
            return self._due(template)
        message = record.getMessage()
        self._failed(message)
        if self._due(""):
            _log.warning(
                "telemetry does not reach its collector: %s. The application is not affected; what can't be delivered "
                "is dropped and counted. Is the collector running where OTEL_EXPORTER_OTLP_ENDPOINT says "
                "(http://localhost:4317 if unset)?",
                message.rstrip("."),
            )
        return False

    def _due(self, key: str) -> bool:
        with self._lock:
            now = self._clock()
            last = self._last.get(key)
            if last is not None and now - last < self._interval:
                return False
            if len(self._last) > 256:
                self._last.clear()
            self._last[key] = now
            return True
