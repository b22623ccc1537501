"""What users' own tests need: ``capture()`` and the pytest fixture ``otelctx_capture``, two nodes without a network, an
engine without a model, an in-process OTLP receiver, Jaeger's answers. ``docs/testing.md`` has an example of each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otelctx.testing.captured import Captured, capture
    from otelctx.testing.clock import ManualClock
    from otelctx.testing.fake_engine import FakeEngine
    from otelctx.testing.jaeger import JaegerQuery
    from otelctx.testing.link_pair import Attempt, LinkPair, Sent
    from otelctx.testing.receiver import OtlpReceiver
    from otelctx.testing.spans import Point, SeenEvent, SeenLog, SeenSpan

__all__ = [
    "Attempt",
    "Captured",
    "FakeEngine",
    "JaegerQuery",
    "LinkPair",
    "ManualClock",
    "OtlpReceiver",
    "Point",
    "SeenEvent",
    "SeenLog",
    "SeenSpan",
    "Sent",
    "capture",
]

# Lazy, because pytest imports this package in every run to find its plugin.
_OWNERS = {
    "Attempt": "otelctx.testing.link_pair",
    "Captured": "otelctx.testing.captured",
    "FakeEngine": "otelctx.testing.fake_engine",
    "JaegerQuery": "otelctx.testing.jaeger",
    "LinkPair": "otelctx.testing.link_pair",
    "ManualClock": "otelctx.testing.clock",
    "OtlpReceiver": "otelctx.testing.receiver",
    "Point": "otelctx.testing.spans",
    "SeenEvent": "otelctx.testing.spans",
    "SeenLog": "otelctx.testing.spans",
    "SeenSpan": "otelctx.testing.spans",
    "Sent": "otelctx.testing.link_pair",
    "capture": "otelctx.testing.captured",
}


def __getattr__(name: str) -> Any:
    if name not in _OWNERS:
        raise AttributeError(f"module 'otelctx.testing' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_OWNERS[name]), name)
