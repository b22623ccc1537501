"""Sessions, guard and engine around a transformers model. The public names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otelctx.inference.engines.transformers import TransformersEngine
    from otelctx.inference.guard import Guard
    from otelctx.inference.observing import observe

__all__ = ["Guard", "TransformersEngine", "observe"]

_OWNERS = {
    "Guard": "otelctx.inference.guard",
    "TransformersEngine": "otelctx.inference.engines.transformers",
    "observe": "otelctx.inference.observing",
}


def __getattr__(name: str) -> Any:
    owner = _OWNERS.get(name)
    if owner is None:
        raise AttributeError(f"module 'otelctx.inference' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(owner), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
