"""Samplers of the SDK that drop a span whatever they are told of it: these need not be asked for each.

What is known is known by the very classes of the SDK, which are not imported: a subclass may do otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import TraceFlags, Tracer

from otelctx.telemetry.events import SPAN_KEY

__all__ = ["EVERYTHING", "NOTHING", "Dropped", "dropped"]

_SAMPLING: Final = "opentelemetry.sdk.trace.sampling"
_TRACER: Final = ("opentelemetry.sdk.trace", "Tracer")
_OFF: Final = "AlwaysOffSampler"
_SAMPLED: Final = int(TraceFlags.SAMPLED)
_PARTS: Final = (
    "_root",
    "_remote_parent_not_sampled",
    "_remote_parent_sampled",
    "_local_parent_not_sampled",
    "_local_parent_sampled",
)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Which spans are dropped for certain: ``all`` of them, those without a parent (``root``), or those of a remote
    parent that is ``unsampled``."""

    all: bool = False
    root: bool = False
    unsampled: bool = False

    def by(self, context: Context) -> bool:
        """Whether a span that is started in ``context`` is one of them."""
        if self.all:
            return True
        if not (self.root or self.unsampled):
            return False
        # Nobody else writes under this key, and to ask an abstract class whether it is a span takes long.
        read = getattr(context.get(SPAN_KEY), "get_span_context", None)
        if read is None:
            return self.root
        _, _, remote, flags, _, valid = read()
        return self.unsampled and remote and not flags & _SAMPLED if valid else self.root


EVERYTHING: Final = Dropped(all=True)
NOTHING: Final = Dropped()


def dropped(tracer: Tracer) -> Dropped:
    """What is known of the sampler of ``tracer``; of one that is not the SDK's own, nothing."""
    kind = type(tracer)
    if (kind.__module__, kind.__name__) != _TRACER or _counted(tracer):
        return NOTHING
    sampler = getattr(tracer, "sampler", None)
    if _is(sampler, "ParentBased"):
        parts = [_off(getattr(sampler, name, None)) for name in _PARTS]
        return Dropped(all(parts), root=parts[0], unsampled=parts[1])
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
