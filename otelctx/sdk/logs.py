"""The standard library's logging, exported as well as printed."""

from __future__ import annotations

import logging

__all__ = ["export_logging"]

_log = logging.getLogger(__name__)


def export_logging() -> None:
    """Export log records by opentelemetry-instrumentation-logging, unless a handler of OpenTelemetry is there already
    or the package is not installed.
    """
    root = logging.getLogger()
    if any(map(_is_exporter, root.handlers)):
        return
    try:
        from opentelemetry.instrumentation.logging import LoggingInstrumentor
    except ImportError:
        _log.debug("opentelemetry-instrumentation-logging is not installed: log records stay local")
        return
    LoggingInstrumentor().instrument()
    for handler in filter(_is_exporter, root.handlers):
        handler.addFilter(_print_too)


def _is_exporter(handler: logging.Handler) -> bool:
    return type(handler).__module__.startswith("opentelemetry.")


def _print_too(record: logging.LogRecord) -> bool:
    """Keep what Python does where nobody has configured logging: warnings go to standard error. With an exporting
    handler on the root logger it would no longer, and they would be seen by nobody if the collector is gone.

    A handler of our own there would be worse: it would turn the application's ``basicConfig()`` into nothing.
    """
    last_resort = logging.lastResort
    if last_resort is not None and record.levelno >= last_resort.level:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if not all(map(_is_exporter, logger.handlers)):
                return True
            logger = logger.parent if logger.propagate else None
        last_resort.handle(record)
    return True
