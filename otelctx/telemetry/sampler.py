"""Samplers of the SDK that drop a span whatever they are told of it: these need not be asked for each.

What is known is known by the very classes of the SDK, which are not imported: a subclass may do otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from opentelemetry.trace import Tracer

__all__ = ["EVERYTHING", "NOTHING", "Dropped", "dropped"]

_SAMPLING: Final = "opentelemetry.sdk.trace.sampling"
_TRACER: Final = ("opentelemetry.sdk.trace", "Tracer")
_OFF: Final = "AlwaysOffSampler"
_PARTS: Final = ("_root", "_remote_parent_sampled", "_remote_parent_not_sampled")
# A caller's span that W3C calls valid, and that is not sampled: the last bit of the flags says so.
_UNSAMPLED: Final = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]").fullmatch


@dataclass(frozen=True, slots=True)
class Dropped:
    """Which spans are dropped for certain: ``all`` of them, those without a parent (``root``), or those of a remote
    parent that is ``unsampled``."""

    all: bool = False
    root: bool = False
    unsampled: bool = False

    @property
    def any(self) -> bool:
        return self.all or self.root or self.unsampled

    def by(self, traceparent: bytes | None) -> bool:
        """Whether the span of a request with this ``traceparent`` is one of them."""
        if self.all:
            return True
        if traceparent is None:
            return self.root
        return self.unsampled and _UNSAMPLED(traceparent) is not None


EVERYTHING: Final = Dropped(all=True)
NOTHING: Final = Dropped()


def dropped(tracer: Tracer) -> Dropped:
    """What is known of the sampler of ``tracer``; of one that is not the SDK's own, nothing."""
    kind = type(tracer)
    if (kind.__module__, kind.__name__) != _TRACER or _counted(tracer):
        return NOTHING
    sampler = getattr(tracer, "sampler", None)
    if _is(sampler, "ParentBased"):
        root, sampled, unsampled = (_off(getattr(sampler, name, None)) for name in _PARTS)
        return Dropped(root and sampled and unsampled, root, unsampled)
    return Dropped(_off(sampler))


def _counted(tracer: Tracer) -> bool:
    """Whether the SDK counts the spans that it starts, those that are dropped too."""
    counts = getattr(tracer, "_tracer_metrics", None)
    return counts is not None and type(counts).__name__ != "NoOpTracerMetrics"


def _is(sampler: object, name: str) -> bool:
    """Whether it is of class ``name`` of the SDK, or of one that the SDK itself has derived from it."""
    kind = type(sampler)
    return kind.__module__ == _SAMPLING and any(base.__name__ == name for base in kind.__mro__)


def _off(sampler: object) -> bool:
    return _is(sampler, "StaticSampler") and getattr(sampler, "get_description", str)() == _OFF
