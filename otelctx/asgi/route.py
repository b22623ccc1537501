"""``http.route``: the template of the route that handled a request, never the path itself.

A tenant's id on a metric is both a leak and a flood of series, so what can't be traced back to a template gives no
route at all. Frameworks are read by what they leave in the scope; none is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from opentelemetry.context import Context

from otelctx.telemetry.events import server_span

__all__ = ["route_of", "set_route"]

_PARAMETER: Final = re.compile(r"\{([^}:]+)(?::[^}]*)?\}")
_MOUNT_TAIL: Final = "/{path}"  # how Starlette ends the template of a mount
_MAX_DEPTH: Final = 16


def set_route(route: str, context: Context | None = None) -> None:
    """Name the route of the current request yourself, for frameworks that leave no template in the scope.

    ``route`` is a template such as ``/users/{id}``. Outside a request it does nothing.
    """
    span = server_span(context)
    if span is not None and hasattr(span, "route"):
        span.route = route


def route_of(scope: Mapping[str, Any]) -> str | None:
    """The template that the application left in ``scope``, with the application's root and all mounts before it."""
    fastapi = scope.get("fastapi")
    effective = fastapi.get("effective_route_context") if isinstance(fastapi, dict) else None
    found = getattr(effective, "path_format", None)
    route = scope.get("route")
    if not isinstance(found, str):
        found = getattr(route, "path_format", None)
    if not isinstance(found, str):
        found = scope.get("path_template")  # Litestar
        return found if isinstance(found, str) else None
    if effective is None and found.endswith(_MOUNT_TAIL) and hasattr(route, "routes"):
        # The mount itself was the last to match: its own part of the path is in root_path already.
        found = ""
    root: str = scope.get("root_path") or ""
    app_root = scope.get("app_root_path")
    if not isinstance(app_root, str):
        return (root.rstrip("/") + found) or "/"  # nothing is mounted: the root is configuration, not a parameter
    mounts = _mounts(scope, root[len(app_root) :], found)
    return None if mounts is None else (app_root.rstrip("/") + mounts + found) or "/"


def _mounts(scope: Mapping[str, Any], path: str, inner: str) -> str | None:
    """Template of the mounts that took ``path`` off the front, or ``None`` if it can't be told."""
    if not path:
        return ""
    routes = getattr(scope.get("router"), "routes", None)  # the outermost router leaves itself there
    found = _walk(routes, path, 0) if routes is not None else None
    return found if found is not None else _put_back(path, scope.get("path_params") or {}, inner)


def _walk(routes: Iterable[Any], path: str, depth: int) -> str | None:
    """Match ``path`` against the mounts, as the routers did."""
    if depth > _MAX_DEPTH:
        return None
    for route in routes:
        inner = getattr(route, "routes", None)
        template = getattr(route, "path_format", None)
        if inner is None or not isinstance(template, str) or not template.endswith(_MOUNT_TAIL):
            continue
        match = route.path_regex.match(path + "/")
        if match is None:
            continue
        own, rest = template[: -len(_MOUNT_TAIL)], "/" + match["path"].rstrip("/")
        below = "" if rest == "/" else _walk(inner, rest, depth + 1)
        if below is not None:
            return own + below
    return None


def _put_back(path: str, params: Mapping[str, Any], inner: str) -> str | None:
    """``path`` with the values of the mounts' parameters put back to ``{name}``; each must be found."""
    own = set(_PARAMETER.findall(inner))
    names = {str(value): name for name, value in params.items() if name not in own}
    segments = path.split("/")
    if not names.keys() <= set(segments):
        return None
    return "/".join(f"{{{names[s]}}}" if s in names else s for s in segments)
