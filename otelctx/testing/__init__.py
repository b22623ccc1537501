"""What users' own tests need: ``capture()``, the pytest fixture ``otelctx_capture``, an in-process OTLP receiver."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otelctx.testing.captured import Captured, capture
    from otelctx.testing.receiver import OtlpReceiver
    from otelctx.testing.spans import SeenEvent, SeenSpan

__all__ = ["Captured", "OtlpReceiver", "SeenEvent", "SeenSpan", "capture"]

# Lazy, because pytest imports this package in every run to find its plugin.
_OWNERS = {
    "Captured": "otelctx.testing.captured",
    "OtlpReceiver": "otelctx.testing.receiver",
    "SeenEvent": "otelctx.testing.spans",
    "SeenSpan": "otelctx.testing.spans",
    "capture": "otelctx.testing.captured",
}


def __getattr__(name: str) -> Any:
    if name not in _OWNERS:
        raise AttributeError(f"module 'otelctx.testing' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_OWNERS[name]), name)
