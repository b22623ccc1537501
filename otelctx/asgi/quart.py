"""``http.route`` for Quart, which leaves no route in the ASGI scope::

    app = name_routes(Quart(__name__))
    asgi = otelctx.wrap(app)

Quart itself is imported only when an application of it is here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeVar

from otelctx.asgi.route import name_route
from otelctx.errors import ConfigError

__all__ = ["name_routes"]

T = TypeVar("T")


def name_routes(app: T) -> T:
    """The same ``app``, of whose requests and websockets each names its route: ``/users/<int:id>``, as Quart writes it.

    Blueprints' prefixes are part of it; a path that matches nothing has none. It listens to Quart's signals
    for the start of a request, so neither an earlier ``before_request`` nor the order of calls matters. Raises
    :class:`~otelctx.errors.ConfigError` if ``app`` is no Quart application.
    """
    if not hasattr(app, "url_map") or not hasattr(app, "websocket_class"):
        raise ConfigError(f"name_routes() takes a Quart application, not {type(app).__name__}: give it the app itself")
    signals = import_module("quart.signals")
    signals.request_started.connect(_request_started, app)
    signals.websocket_started.connect(_websocket_started, app)
    return app


async def _request_started(sender: object, **_: object) -> None:
    current = import_module("quart").globals.request_ctx
    _name(current.request, current.url_adapter)


async def _websocket_started(sender: object, **_: object) -> None:
    current = import_module("quart").globals.websocket_ctx
    _name(current.websocket, current.url_adapter)


def _name(request: Any, adapter: Any) -> None:
    rule = request.url_rule
    if rule is None and (methods := getattr(request.routing_exception, "valid_methods", None)):
        rule = _of_another_method(adapter, methods[0])
    if rule is not None:
        name_route(request.scope, rule.rule)


def _of_another_method(adapter: Any, method: str) -> Any:
    """The rule that exists, and takes other methods than the request's."""
    try:
        return adapter.match(method=method, return_rule=True)[0]
    except Exception:  # it may be a redirect for that one, which werkzeug raises
        return None
