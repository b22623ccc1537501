"""The pipelines of the SDK's providers, whoever made them.

The SDK has no public way from a provider to its exporters. Where another version names things otherwise, a pipeline is
not found: telemetry leaves all the same, and only its drops are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from otelctx.sdk.pipeline import Pipeline, Signal, pipeline_of

__all__ = ["find_pipelines", "readers"]

# What holds all processors of a provider of spans, and of one of log records.
_ROOTS: Final = ("_active_span_processor", "_multi_log_record_processor")
# What is looked at of what the SDK queues with. Without all of it nothing is wrapped: an error in there would be raised
# where a span ends.
_BATCH: Final = ("_exporter", "_queue", "_shutdown", "_export_lock", "emit")


def find_pipelines(signal: Signal, provider: Any) -> list[Pipeline]:
    """Those of ``provider``, each watched from the first time that it is found."""
    return [found for found in _FINDERS[signal](signal, provider) if found is not None]


def readers(provider: Any) -> list[Any]:
    """The metric readers of a provider; some are read by others and export nothing."""
    config = getattr(provider, "_sdk_config", None)
    found: Any = getattr(provider, "_metric_readers", None) or getattr(config, "metric_readers", ())
    return list(found)


def _behind_processors(signal: Signal, provider: Any) -> Iterator[Pipeline | None]:
    waiting: list[Any] = [getattr(provider, name, None) for name in _ROOTS]
    while waiting:
        processor = waiting.pop(0)
        waiting += getattr(processor, "_span_processors", ())
        waiting += getattr(processor, "_log_record_processors", ())
        batch: Any = getattr(processor, "_batch_processor", None)
        if all(hasattr(batch, name) for name in _BATCH):
            yield _watched(signal, batch._exporter, batch)
            continue
        exporter = getattr(processor, "span_exporter", None) or getattr(processor, "_exporter", None)
        if hasattr(exporter, "export"):
            yield _watched(signal, exporter, direct=batch is None)


def _behind_readers(signal: Signal, provider: Any) -> Iterator[Pipeline | None]:
    for reader in readers(provider):
        exporter = getattr(reader, "_exporter", None)
        if hasattr(exporter, "export"):
            yield _watched(signal, exporter)


def _watched(signal: Signal, exporter: Any, batch: Any = None, *, direct: bool = False) -> Pipeline | None:
    try:
        return pipeline_of(exporter) or Pipeline(signal, exporter, batch, direct=direct)
    except AttributeError:  # of somebody's own, with slots or frozen: nothing can be put on it
        return None


_FINDERS: Final[dict[Signal, Callable[[Signal, Any], Iterator[Pipeline | None]]]] = {
    "traces": _behind_processors,
    "metrics": _behind_readers,
    "logs": _behind_processors,
}
