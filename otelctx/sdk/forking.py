"""What a forked child must have of its own: connections, and metrics that start from nothing."""

from __future__ import annotations

from threading import RLock
from typing import Any, Final

from otelctx.sdk.pipeline import Pipeline

__all__ = ["own_connections", "own_metrics"]

# Channels of the parent, kept: closing one here would say goodbye on the parent's connection.
_parents: Final[list[Any]] = []


def own_connections(pipeline: Pipeline) -> None:
    """Connections of this process in place of those inherited, whose other end the parent is talking to."""
    exporter = pipeline.exporter
    pipeline.after_fork()
    connect = getattr(exporter, "_initialize_channel_and_stub", None)
    if connect is not None and not getattr(exporter, "_shutdown", False):
        _parents.append(exporter._channel)
        connect()
    transport = getattr(getattr(exporter, "_client", None), "_transport", None)
    session = getattr(transport, "_session", None) or getattr(exporter, "_session", None)
    if session is not None:
        session.close()  # of its pool; it opens new ones


def own_metrics(provider: Any) -> None:
    """Forget the sums that the parent goes on to report, or they would be added up twice."""
    consumer = getattr(provider, "_measurement_consumer", None)
    for storage in getattr(consumer, "_reader_storages", {}).values():
        storage._lock = RLock()
        storage._instrument_view_instrument_matches.clear()
