"""``http.route`` for Django, which leaves no route in the ASGI scope.

In ``settings.py``, anywhere in the list (first is best: a view middleware that answers by itself ends the row)::

    MIDDLEWARE = ["otelctx.asgi.django.RouteMiddleware", …]

and in ``asgi.py``, ``application = otelctx.wrap(get_asgi_application())``. Django itself is not imported here: all that
is needed of it is what a request brings along.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from otelctx.asgi.route import name_route

__all__ = ["RouteMiddleware", "template"]

_REGEX: Final = re.compile(r"\(\?P<|^\^|\$$|\\[ZAbBdw]")
_NAMED: Final = re.compile(r"\?P<(\w+)>")
_NO_SCOPE: Final[Mapping[str, Any]] = {}


class RouteMiddleware:
    """Names the route once Django has resolved the view, also for one that answers 405 or raises.

    The template is as Django writes it, ``/users/<int:id>/``; of a regular expression it is :func:`template`. For
    sync and async handlers, without a change of thread for either.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        self.process_view: Callable[..., Any] = _view
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)
            self.process_view = _aview  # one that is sync would be run in another thread

    def __call__(self, request: Any) -> Any:
        return self.get_response(request)


def _view(request: Any, view: object, args: object, kwargs: object) -> None:
    route = getattr(request.resolver_match, "route", None)
    if isinstance(route, str):
        name_route(getattr(request, "scope", _NO_SCOPE), template(route))


async def _aview(request: Any, view: object, args: object, kwargs: object) -> None:
    _view(request, view, args, kwargs)


def template(route: str) -> str:
    r"""A Django route as a template: ``users/<int:id>/`` gets its slash, ``^users/(?P<id>[0-9]+)/$`` becomes
    ``/users/<id>/``; a group without a name is ``<var>``, and what is optional stays, as it is part of the pattern.
    """
    if _REGEX.search(route) is not None:
        route = _plain(route)
    return route if route.startswith("/") else f"/{route}"


def _plain(pattern: str) -> str:
    """``pattern`` with each capturing group as ``<name>``, and without anchors and escapes."""
    out: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "(":
            end = _group_end(pattern, at)
            name = _NAMED.match(pattern, at + 1)
            if name is not None:
                out.append(f"<{name[1]}>")
            elif pattern.startswith("(?", at):
                # (?:…), which may hold groups that capture; a look-around or flag is no part of the path.
                out.append(_plain(pattern[at + 3 : end]) if pattern.startswith("(?:", at) else "")
            else:
                out.append("<var>")
            at = end + 1
            continue
        if char == "\\":
            at += 1
            escaped = pattern[at : at + 1]
            out.append("" if escaped in "AZbB" else f"\\{escaped}" if escaped.isalpha() else escaped)
        elif char not in "^$":
            out.append(char)
        at += 1
    return "".join(out)


def _group_end(pattern: str, start: int) -> int:
    """Where the group that opens at ``start`` closes; parentheses that are escaped or in a class don't count."""
    depth, in_class, at = 0, False, start
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]" or pattern[at - 1] == "["
        elif char == "[":
            in_class = True
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return len(pattern)
