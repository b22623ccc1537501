"""The standard library's logging, exported as well as printed."""

from __future__ import annotations

import logging

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value

__all__ = ["export_logging", "keep_printing"]

_log = logging.getLogger(__name__)


def export_logging(level: int | str | None = None) -> None:
    """Export log records by opentelemetry-instrumentation-logging, those of ``level`` and above if one is given.

    Nothing is done if a handler of OpenTelemetry is on the root logger already, if that package has been set up by
    somebody else, or if it is not installed.
    Raises ``ValueError`` for a level that logging does not know.
    """
    root = logging.getLogger()
    if any(map(_is_exporter, root.handlers)):
        return
    try:
        from opentelemetry.instrumentation.logging import LoggingInstrumentor
    except ImportError:
        _log.debug("opentelemetry-instrumentation-logging is not installed: log records stay local")
        return
    instrumentor = LoggingInstrumentor()
    if instrumentor.is_instrumented_by_opentelemetry:  # and its handler left out, as somebody has wanted it
        return
    instrumentor.instrument()
    for handler in filter(_is_exporter, root.handlers):
        if level is not None:
            handler.setLevel(level)
    keep_printing()


def keep_printing() -> None:
    """What Python prints where nobody has configured logging, it prints beside any exporting handler as well.

    May be called any number of times, for handlers that have come since.
    """
    for handler in filter(_is_exporter, logging.getLogger().handlers):
        handler.addFilter(_wanted)


def _is_exporter(handler: logging.Handler) -> bool:
    return type(handler).__module__.startswith("opentelemetry.")


def _wanted(record: logging.LogRecord) -> bool:
    """Not what is said while exporting, by an HTTP client for one: to export that would go on for ever.

    Prints on the way what Python prints where nobody has configured logging: with an exporting handler on the root
    logger, warnings would no longer go to standard error, and be seen by nobody if the collector is gone. A handler of
    our own there would be worse: it would turn the application's ``basicConfig()`` into nothing.
    """
    last_resort = logging.lastResort
    if last_resort is not None and record.levelno >= last_resort.level and not _has_handler(record.name):
        last_resort.handle(record)
    return not get_value(_SUPPRESS_INSTRUMENTATION_KEY)


def _has_handler(name: str) -> bool:
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if not all(map(_is_exporter, logger.handlers)):
            return True
        logger = logger.parent if logger.propagate else None
    return False
