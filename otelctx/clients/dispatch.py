"""``instrument``: whatever client it is given, the shell that fits. Imports nothing before it knows which."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, TypeVar

from otelctx.errors import ConfigError

__all__ = ["instrument"]

T = TypeVar("T")

# (top-level module, class) as they stand along the object's MRO → the module of ours with an ``instrument``.
_SHELLS: Final = {
    ("httpx", "Client"): "otelctx.clients.httpx",
    ("httpx", "AsyncClient"): "otelctx.clients.httpx",
    ("httpx2", "Client"): "otelctx.clients.httpx",
    ("httpx2", "AsyncClient"): "otelctx.clients.httpx",
    ("requests", "Session"): "otelctx.clients.requests",
    ("aiohttp", "ClientSession"): "otelctx.clients.aiohttp",
    ("grpc", "Channel"): "otelctx.grpc.client",
}


def instrument(client: T, **options: Any) -> T:
    """Trace ``client`` and let it carry context. Returns the same object, or for a gRPC channel one in front
    of it; a second time changes nothing.

    ``options`` are ``node``, ``tracer_provider`` and ``meter_provider``, instead of the process's own. Raises
    :class:`~otelctx.errors.ConfigError` for an object that is none of the known clients.
    """
    for cls in type(client).__mro__:
        shell = _SHELLS.get((cls.__module__.partition(".")[0], cls.__name__))
        if shell is not None:
            found: T = import_module(shell).instrument(client, **options)
            return found
    known = ", ".join(f"{library}.{cls}" for library, cls in _SHELLS)
    kind = type(client)
    raise ConfigError(f"instrument() takes {known}, and their subclasses, not {kind.__module__}.{kind.__qualname__}")
