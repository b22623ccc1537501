"""otelctx: trace and session context for LLM services, and every context-window event over OTLP.

This module is a lazy facade: a name is imported from the module that owns it when it is first used, so that
``import otelctx`` costs next to nothing and loads no framework. Nothing inside the package imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otelctx import gateway, grpc, inference, serving, testing
    from otelctx.asgi.middleware import ContextMiddleware, wrap
    from otelctx.clients.dispatch import instrument
    from otelctx.context.current import ContextKey, UpKey, session
    from otelctx.context.keep import in_context, keep_context
    from otelctx.context.state import Window
    from otelctx.errors import OtelctxError
    from otelctx.sdk.configure import configure

__version__ = "0.1.0"

__all__ = [
    "ContextKey",
    "ContextMiddleware",
    "OtelctxError",
    "UpKey",
    "Window",
    "__version__",
    "configure",
    "gateway",
    "grpc",
    "in_context",
    "inference",
    "instrument",
    "keep_context",
    "serving",
    "session",
    "testing",
    "wrap",
]

# name → module that owns it; a name that owns itself is a subpackage.
_OWNERS = {
    "ContextKey": "otelctx.context.current",
    "ContextMiddleware": "otelctx.asgi.middleware",
    "OtelctxError": "otelctx.errors",
    "UpKey": "otelctx.context.current",
    "Window": "otelctx.context.state",
    "configure": "otelctx.sdk.configure",
    "gateway": "otelctx.gateway",
    "grpc": "otelctx.grpc",
    "in_context": "otelctx.context.keep",
    "inference": "otelctx.inference",
    "instrument": "otelctx.clients.dispatch",
    "keep_context": "otelctx.context.keep",
    "serving": "otelctx.serving",
    "session": "otelctx.context.current",
    "testing": "otelctx.testing",
    "wrap": "otelctx.asgi.middleware",
}

# subpackage → the extra without which it may not be there
_EXTRAS = {
    "gateway": "gateway",
    "grpc": "grpc",
    "inference": "inference",
    "serving": "serve",
    "testing": "testing",
}


def __getattr__(name: str) -> Any:
    owner = _OWNERS.get(name)
    if owner is None:
        raise AttributeError(f"module 'otelctx' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        module = import_module(owner)
    except ModuleNotFoundError as error:
        if name in _EXTRAS:
            error.add_note(f"pip install 'otelctx[{_EXTRAS[name]}]'")
        raise
    value = module if owner == f"otelctx.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
