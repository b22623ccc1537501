"""Templates of mounts: what stands before a route, from the routers as they are built.

``root_path`` holds a mount's part of the path with its parameters' values in it. The mounts are matched once more, as
the routers did it, and give their templates. Where one can't be seen, nothing is known, as a value may have been
replaced by another one of the same name further in. Values are put back by name only where no router has left itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

__all__ = ["leaf", "mounted"]

_PARAMETER: Final = re.compile(r"\{([^}:]+)(?::[^}]*)?\}|<(?:[^<>:]*:)?([^<>:]+)>")
_MOUNT_TAIL: Final = "/{path}"  # how Starlette ends the template of a mount
_MAX_DEPTH: Final = 16

_LEVEL: Final = "_otelctx_routes"  # on whoever has them

Found = tuple[str, object]


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
        if (router := scope.get("router")) is not None:  # the outermost one leaves itself there
            found = _walk(_owner(router), path, scope, 0)
            before = None if found is None else found[0]
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
    found = _walk(_owner(scope.get("router")), taken, scope, 0)
    rest = path[len(root) :] if path.startswith(root) else path
    for route in _serving(found[1], endpoint) if found is not None else ():
        if route.path_regex.match(rest):
            template: str = route.path_format
            return template
    return "" if taken else None


def _host(scope: Mapping[str, Any]) -> str:
    """Name in the Host header, as Starlette compares it."""
    value = next((value for name, value in scope.get("headers", ()) if name == b"host"), b"")
    return value[:255].decode("latin-1").rpartition("]")[2].partition(":")[0].lower()


def _owner(app: object) -> object:
    """Who has the routes of ``app``, also through the middleware around it."""
    for _ in range(_MAX_DEPTH):
        if getattr(app, "routes", None):
            return app
        app = getattr(app, "app", None)
    return ()


class _Level:
    """The routes of one application or router, sorted out once: there may be a thousand, of which one is looked for."""

    def __init__(self, routes: Sequence[Any]) -> None:
        self._shape = _shape(routes)
        self.inner = [
            route
            for route in routes
            if not (template := getattr(route, "path_format", None)) or _is_mount(route, template)
        ]
        self.serving: dict[int, list[Any]] = {}
        for route in _flat(routes):
            if isinstance(getattr(route, "path_format", None), str):
                self.serving.setdefault(id(getattr(route, "endpoint", None)), []).append(route)

    def fits(self, routes: Sequence[Any]) -> bool:
        return self._shape == _shape(routes)


def _shape(routes: Sequence[Any]) -> tuple[int, ...]:
    """Changes when one is added, which may be at any time."""
    return len(routes), *map(id, routes[:1]), *map(id, routes[-1:])


def _level(owner: Any) -> _Level:
    if isinstance(owner, tuple):  # of FastAPI's included routers, whose lists are theirs
        return _Level(owner)
    routes = owner.routes
    kept: dict[str, Any] = getattr(owner, "__dict__", {})
    known: _Level | None = kept.get(_LEVEL)
    if known is None or not known.fits(routes):
        known = kept[_LEVEL] = _Level(routes)
    return known


def _serving(owner: object, endpoint: object) -> list[Any]:
    """Routes to ``endpoint``, in their order."""
    return _level(owner).serving.get(id(endpoint), [])


def _flat(routes: Iterable[Any], depth: int = 0) -> Iterator[Any]:
    """``routes`` with those that FastAPI keeps behind an included router, as they are there."""
    for route in routes:
        candidates = getattr(route, "effective_candidates", None)
        if candidates is None:
            yield getattr(route, "starlette_route", None) or route
        elif depth < _MAX_DEPTH:
            yield from _flat(candidates(), depth + 1)


def _is_mount(route: Any, template: str) -> bool:
    return template.endswith(_MOUNT_TAIL) and hasattr(route, "routes")


def _walk(owner: object, path: str, scope: Mapping[str, Any], depth: int) -> Found | None:
    """Match all of ``path`` against the mounts, as the routers did. Their template, and who has the routes behind the
    last.
    """
    if path in ("", "/"):
        return "", owner
    if depth > _MAX_DEPTH:
        return None
    for route in _level(owner).inner:
        template = getattr(route, "path_format", None)
        if not template:
            found = _behind(route, path, scope, depth + 1)
            if found is not None:
                return found
        else:
            match = route.path_regex.match(path + "/")
            found = None
            if match is not None:
                found = _walk(_owner(route), "/" + match["path"].rstrip("/"), scope, depth + 1)
            if found is not None:
                return template[: -len(_MOUNT_TAIL)] + found[0], found[1]
    return None


def _behind(route: Any, path: str, scope: Mapping[str, Any], depth: int) -> Found | None:
    """The same for what takes nothing off the path: a host, and what FastAPI keeps behind an included router."""
    if (candidates := getattr(route, "effective_candidates", None)) is not None:
        return _walk(tuple(candidates()), path, scope, depth)
    if (inner := getattr(route, "starlette_route", None)) is not None:
        return _walk((inner,), path, scope, depth)
    if (name := getattr(route, "host_regex", None)) is not None and name.match(_host(scope)):
        return _walk(_owner(route), path, scope, depth)
    return None


def _put_back(path: str, params: Mapping[str, Any], inner: str) -> str | None:
    """``path`` with the values of the mounts' parameters put back to ``{name}``; each must be found, as it is."""
    own = {a or b for a, b in _PARAMETER.findall(inner)}
    names = {str(value): name for name, value in params.items() if name not in own}
    if own and not names:
        return None  # the route's parameter may have replaced a mount's of the same name, whose value nobody knows
    segments = path.split("/")
    if any(segments.count(value) != 1 for value in names):
        return None
    literal = [segment for segment in segments if segment not in names]
    if len(names) < len(params.keys() - own) or any(value in segment for value in names for segment in literal):
        return None
    return "/".join(f"{{{names[s]}}}" if s in names else s for s in segments)
