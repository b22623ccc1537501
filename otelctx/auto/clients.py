"""Clients of known libraries: each is instrumented when it is made."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, Final, TypeVar

from otelctx.auto.patches import Patches
from otelctx.clients.dispatch import instrument

__all__ = ["clients"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

# (module, class)
_CLASSES: Final = (
    ("httpx", "Client"),
    ("httpx", "AsyncClient"),
    ("httpx2", "Client"),
    ("httpx2", "AsyncClient"),
    ("requests.sessions", "Session"),
    ("aiohttp.client", "ClientSession"),
)
# (module, function, whether it takes a target)
_INTERCEPTED: Final = (
    ("grpc", "server", False),
    ("grpc.aio", "server", False),
    ("grpc.aio", "insecure_channel", True),
    ("grpc.aio", "secure_channel", True),
)
_CHANNELS: Final = ("insecure_channel", "secure_channel")


def clients(patches: Patches) -> None:
    """HTTP clients, and gRPC's channels and servers, which are made by functions."""
    for module, name in _CLASSES:
        patches.when_imported(module, _class_patcher(patches, name))
    for name in _CHANNELS:
        patches.when_imported("grpc", _function_patcher(patches, name, _channel))
    for module, name, targeted in _INTERCEPTED:
        make = _intercepted_channel if targeted else _intercepted
        patches.when_imported(module, _function_patcher(patches, name, make))


def _class_patcher(patches: Patches, name: str) -> Callable[[ModuleType], None]:
    def patch(module: ModuleType) -> None:
        patches.put(getattr(module, name), "__init__", lambda init: _instrumented(init, patches))

    return patch


def _function_patcher(patches: Patches, name: str, make: Callable[..., Any]) -> Callable[[ModuleType], None]:
    def patch(module: ModuleType) -> None:
        patches.put(module, name, lambda original: make(original, patches))

    return patch


def _instrumented(init: Callable[..., Any], patches: Patches) -> Any:
    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if patches.active:
            _instrument(self)

    return __init__


def _instrument(client: T) -> T:
    try:
        return instrument(client)
    except Exception as error:  # a version or a subclass that we don't know how to: the application works as before
        _log.warning("%s is not instrumented: %s", type(client).__qualname__, error)
        return client


def _channel(original: Callable[..., Any], patches: Patches) -> Any:
    @wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        channel = original(*args, **kwargs)
        return _instrument(channel) if patches.active else channel

    return make


def _intercepted(original: Callable[..., Any], patches: Patches) -> Any:
    return _with_interceptors(original, patches, lambda given: None)


def _intercepted_channel(original: Callable[..., Any], patches: Patches) -> Any:
    return _with_interceptors(original, patches, lambda given: given.get("target"))


def _with_interceptors(
    original: Callable[..., Any], patches: Patches, target_of: Callable[[dict[str, Any]], Any]
) -> Any:
    signature = inspect.signature(original)

    @wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if not patches.active:
            return original(*args, **kwargs)
        from otelctx.grpc.interceptors import interceptors  # gRPC is there by now, and only by now

        bound = signature.bind(*args, **kwargs)
        ours = interceptors(target_of(bound.arguments))
        bound.arguments["interceptors"] = [*ours, *(bound.arguments.get("interceptors") or ())]
        return original(*bound.args, **bound.kwargs)

    return make
