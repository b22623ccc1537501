"""Templates of mounts: what stands before a route, from the routers as they are built.

``root_path`` holds a mount's part of the path with its parameters' values in it. The mounts are matched once more, as
the routers did it, and give their templates; where they can't be walked, values are put back by name if all are found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

__all__ = ["leaf", "mounted"]

_PARAMETER: Final = re.compile(r"\{([^}:]+)(?::[^}]*)?\}|<(?:[^<>:]*:)?([^<>:]+)>")
_MOUNT_TAIL: Final = "/{path}"  # how Starlette ends the template of a mount
_MAX_DEPTH: Final = 16

Found = tuple[str, Iterable[Any]]


def mounted(scope: Mapping[str, Any], own: str, *, values: bool = True) -> str | None:
    """``own`` with the application's root and the templates of all mounts before it; ``None`` if they can't be told.

    ``values=False``: ``scope["path_params"]`` are not those of the mounts.
    """
    root: str = scope.get("root_path") or ""
    app_root = scope.get("app_root_path")
    if not isinstance(app_root, str):
        return (root.rstrip("/") + own) or "/"  # nothing is mounted: the root is configuration, not a parameter
    path = root[len(app_root) :]
    before: str | None = ""
    if path:
        found = _walk(_routes(scope.get("router")), path, _host(scope), 0)
        if found is not None:
            before = found[0]
        else:
            before = _put_back(path, scope.get("path_params") or {}, own) if values else None
    return None if before is None else (app_root.rstrip("/") + before + own) or "/"


def leaf(scope: Mapping[str, Any]) -> str | None:
    """The template of the innermost route, which has left its endpoint in ``scope`` and not itself.

    Empty where the endpoint is all that is mounted at ``root_path``; ``None`` if nothing has matched.
    """
    endpoint = scope.get("endpoint")
    if endpoint is None:
        return None
    root, path = scope.get("root_path") or "", scope["path"]
    app_root = scope.get("app_root_path")
    taken = root[len(app_root) :] if isinstance(app_root, str) else ""
    found = _walk(_routes(scope.get("router")), taken, _host(scope), 0)
    rest = path[len(root) :] if path.startswith(root) else path
    for route in _flat(found[1]) if found is not None else ():
        template = getattr(route, "path_format", None)
        if getattr(route, "endpoint", None) is endpoint and isinstance(template, str) and route.path_regex.match(rest):
            return template
    return "" if taken else None


def _host(scope: Mapping[str, Any]) -> str:
    """Name in the Host header, as Starlette compares it."""
    value = next((value for name, value in scope.get("headers", ()) if name == b"host"), b"")
    return value[:255].decode("latin-1").rpartition("]")[2].partition(":")[0].lower()


def _routes(app: object) -> Iterable[Any]:
    """The routes of ``app``, also through the middleware around it."""
    for _ in range(_MAX_DEPTH):
        routes = getattr(app, "routes", None)
        if routes:
            return tuple(routes)
        app = getattr(app, "app", None)
    return ()


def _flat(routes: Iterable[Any], depth: int = 0) -> Iterator[Any]:
    """``routes`` with those that FastAPI keeps behind an included router, as they are there."""
    for route in routes:
        candidates = getattr(route, "effective_candidates", None)
        if candidates is None:
            yield getattr(route, "starlette_route", None) or route
        elif depth < _MAX_DEPTH:
            yield from _flat(candidates(), depth + 1)


def _walk(routes: Iterable[Any], path: str, host: str, depth: int) -> Found | None:
    """Match all of ``path`` against the mounts, as the routers did. Their template, and the routes behind the last."""
    if not path or path == "/":
        return "", routes
    if depth > _MAX_DEPTH:
        return None
    for route in _flat(routes):
        if (name := getattr(route, "host_regex", None)) is not None:
            found = _walk(_routes(route), path, host, depth + 1) if name.match(host) else None
            if found is not None:
                return found
            continue
        template = getattr(route, "path_format", None)
        if not isinstance(template, str) or not template.endswith(_MOUNT_TAIL) or not hasattr(route, "routes"):
            continue
        match = route.path_regex.match(path + "/")
        if match is None:
            continue
        found = _walk(_routes(route), "/" + match["path"].rstrip("/"), host, depth + 1)
        if found is not None:
            return template[: -len(_MOUNT_TAIL)] + found[0], found[1]
    return None


def _put_back(path: str, params: Mapping[str, Any], inner: str) -> str | None:
    """``path`` with the values of the mounts' parameters put back to ``{name}``; each must be found."""
    own = {a or b for a, b in _PARAMETER.findall(inner)}
    names = {str(value): name for name, value in params.items() if name not in own}
    if own and not names:
        return None  # the route's parameter may have replaced a mount's of the same name, whose value nobody knows
    segments = path.split("/")
    if not names.keys() <= set(segments):
        return None
    return "/".join(f"{{{names[s]}}}" if s in names else s for s in segments)
