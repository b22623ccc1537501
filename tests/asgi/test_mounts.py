"""Where a framework leaves no route: the routes of an application are sorted out once, and not for each request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from otelctx.asgi.route import route_of


async def item(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


async def other(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


class Counted(list[Any]):
    """Routes that count how often somebody goes through them."""

    walks = 0

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        return super().__iter__()


def scope(app: Any, path: str, endpoint: Any, root: str = "", **params: str) -> dict[str, Any]:
    """As Starlette 1.0 leaves it: the endpoint and the outermost router, and not the route."""
    return {
        "type": "http",
        "path": path,
        "headers": [],
        "root_path": root,
        "app_root_path": "",
        "router": getattr(app, "router", app),
        "endpoint": endpoint,
        "path_params": params,
    }


@pytest.fixture
def app() -> Any:
    """``/items/{id}`` and the same twice more in mounts."""
    inner = Starlette(routes=[Route("/items/{id}", item), Route("/{id}", other)])
    made = Starlette(routes=[Route("/items/{id}", item), Mount("/in/{tenant}", app=inner), Mount("/beside", app=inner)])
    made.router.routes = Counted(made.router.routes)
    inner.router.routes = Counted(inner.router.routes)
    return made


CASES = [
    ("/items/7", item, "", "/items/{id}"),
    ("/in/acme/items/7", item, "/in/acme", "/in/{tenant}/items/{id}"),
    ("/in/acme/7", other, "/in/acme", "/in/{tenant}/{id}"),
    ("/beside/items/7", item, "/beside", "/beside/items/{id}"),
]


@pytest.mark.parametrize(("path", "endpoint", "root", "expected"), CASES)
def test_a_second_request_goes_through_no_list_of_routes(
    app: Any, path: str, endpoint: Any, root: str, expected: str
) -> None:
    asked = scope(app, path, endpoint, root)
    lists = [app.router.routes, app.router.routes[1].routes]
    assert route_of(asked) == expected
    walks = [found.walks for found in lists]
    assert route_of(asked) == expected
    assert [found.walks for found in lists] == walks


def test_a_route_that_is_added_later_is_seen(app: Any) -> None:
    async def late(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    asked = scope(app, "/late/7", late)
    assert route_of(asked) is None
    app.router.routes.append(Route("/late/{id}", late))
    assert route_of(asked) == "/late/{id}"
    app.router.routes.append(Mount("/more", routes=[Route("/{name}", late)]))
    assert route_of(scope(app, "/more/x", late, "/more")) == "/more/{name}"
    app.router.routes.insert(0, Route("/late/{first}", late))
    assert route_of(asked) == "/late/{first}", "as the router matches, the first one"


def test_routes_of_whoever_can_keep_nothing_are_read_all_the_same() -> None:
    class Slotted:
        __slots__ = ("routes",)

        def __init__(self) -> None:
            self.routes = [Route("/items/{id}", item)]

    assert route_of(scope(Slotted(), "/items/7", item)) == "/items/{id}"


def test_without_any_route_there_is_none() -> None:
    assert route_of(scope(Starlette(), "/items/7", item)) is None
