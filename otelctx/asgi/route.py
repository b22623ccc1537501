"""``http.route``: the template of the route that handled a request, never the path itself.

A tenant's id on a metric is both a leak and a flood of series, so what can't be traced back to a template gives no
route at all. Frameworks are read by what they leave in the scope; none is imported. A template is in its framework's
own format, as the conventions have it: ``/users/{id}`` of Starlette, FastAPI and Litestar, ``/users/<int:id>`` of Quart
and Django.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context

from otelctx.asgi.mounts import leaf, mounted
from otelctx.telemetry.events import server_span

__all__ = ["name_route", "route_of", "set_route"]


def set_route(route: str, context: Context | None = None) -> None:
    """Name the route of the current request yourself, for frameworks that leave no template in the scope.

    ``route`` is a template such as ``/users/{id}``, with the application's root in front of it. Outside a request it
    does nothing.
    """
    span = server_span(context)
    if span is not None and hasattr(span, "route"):
        span.route = route


def name_route(scope: Mapping[str, Any], template: str) -> None:
    """:func:`set_route` with what is mounted before ``template``. Never raises, as it is called within a request."""
    try:
        found = mounted(scope, template)
    except Exception:
        return
    if found is not None:
        set_route(found)


def route_of(scope: Mapping[str, Any]) -> str | None:
    """The template that the application left in ``scope``, with the application's root and all mounts before it. Never
    raises: what a framework leaves under a name that others use as well may be anything.
    """
    template = scope.get("path_template")
    if template is None and not ("endpoint" in scope or "route" in scope or "fastapi" in scope):
        return None  # what names a route leaves one of these
    try:
        if template is not None:
            return _litestar(scope, template)
        found = _own(scope)
        return None if found is None else mounted(scope, found)
    except Exception:
        return None


def _own(scope: Mapping[str, Any]) -> str | None:
    """What the innermost router has matched; empty for a mount whose inside names nothing."""
    fastapi = scope.get("fastapi")
    if isinstance(fastapi, dict):
        found = getattr(fastapi.get("effective_route_context"), "path_format", None)
        if isinstance(found, str) and found:  # it is empty for what isn't FastAPI's own, such as a mount
            return found
    route = scope.get("route")
    found = getattr(route, "path_format", None)
    if isinstance(found, str):
        # The mount itself was the last to match: its own part of the path is in root_path already.
        return "" if found.endswith("/{path}") and hasattr(route, "routes") else found
    # Starlette 1.0 leaves no route, and FastAPI none for what isn't its own: add_route(), /docs, a mount.
    return leaf(scope)


def _litestar(scope: Mapping[str, Any], template: object) -> str | None:
    if not isinstance(template, str):
        return None
    if template:
        return mounted(scope, template, values=False)  # path_params are Litestar's own by now
    # A mount, whose template is its path: it takes no parameters.
    handler = scope.get("route_handler")
    app = scope.get("litestar_app")
    paths = {r.path for r in getattr(app, "routes", ()) if getattr(r, "route_handler", None) is handler}
    if len(paths) != 1:
        return None
    inner = _own(scope)  # visible unless the mount was told to copy the scope
    return mounted(scope, paths.pop() + (inner or ""), values=False)
