"""Routes and scopes under Starlette and FastAPI, where they are nested into each other and into others."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, routing
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute

from otelctx.asgi.route import route_of
from otelctx.context.current import ContextKey

TIER = ContextKey("asgi.starlette.tier", str)
INCLUDES_MOUNTS = hasattr(routing, "_IncludedRouter")
seen: list[str | None] = []


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


async def raw(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("ok")(scope, receive, send)


def items() -> Router:
    return Router([Route("/items/{item}", page, methods=["GET"]), Mount("/sub/{item}", app=Router([Route("/", page)]))])


def nested() -> FastAPI:
    app, router, inner = FastAPI(), APIRouter(), APIRouter()

    @inner.get("/{leaf}")
    def leaf(leaf: str) -> str:
        return leaf

    router.mount("/mounted/{tenant}", items())
    router.add_route("/plain/{x}", page)
    router.include_router(inner, prefix="/inner/{b}")
    app.include_router(router, prefix="/included/{a}")
    app.add_route("/plain/{x}", page)
    app.mount("/opaque/{tenant}", raw)
    app.mount("/wrapped/{tenant}", CORSMiddleware(items()))
    app.mount("/fastapi/{tenant}", FastAPI(routes=[Route("/plain/{x}", page)]))
    return app


@pytest.mark.parametrize(
    ("method", "path", "status", "route"),
    [
        ("GET", "/included/p/inner/q/r", 200, "/included/{a}/inner/{b}/{leaf}"),
        ("DELETE", "/included/p/inner/q/r", 405, "/included/{a}/inner/{b}/{leaf}"),
        ("OPTIONS", "/included/p/inner/q/r", 405, "/included/{a}/inner/{b}/{leaf}"),
        ("HEAD", "/included/p/inner/q/r", 405, "/included/{a}/inner/{b}/{leaf}"),
        pytest.param(
            *("GET", "/included/p/mounted/acme/items/x", 200, "/included/{a}/mounted/{tenant}/items/{item}"),
            marks=pytest.mark.skipif(not INCLUDES_MOUNTS, reason="this FastAPI leaves mounts out of include_router()"),
        ),
        ("GET", "/included/p/plain/x", 200, "/included/{a}/plain/{x}"),
        ("GET", "/plain/acme", 200, "/plain/{x}"),
        ("HEAD", "/plain/acme", 200, "/plain/{x}"),
        ("DELETE", "/plain/acme", 405, "/plain/{x}"),
        ("GET", "/openapi.json", 200, "/openapi.json"),
        ("GET", "/docs", 200, "/docs"),
        ("GET", "/opaque/acme/x/y", 200, "/opaque/{tenant}"),
        ("GET", "/wrapped/acme/items/x", 200, "/wrapped/{tenant}/items/{item}"),
        ("DELETE", "/wrapped/acme/items/x", 405, "/wrapped/{tenant}/items/{item}"),
        ("GET", "/fastapi/acme/plain/x", 200, "/fastapi/{tenant}/plain/{x}"),
        ("GET", "/fastapi/acme/nowhere", 404, "/fastapi/{tenant}"),
        ("GET", "/plain/acme/", 307, None),
        ("GET", "/nowhere/acme", 404, None),
    ],
)
async def test_fastapis_route_whatever_is_nested_in_it(
    rig: Any, method: str, path: str, status: int, route: str | None
) -> None:
    r = rig(nested())
    response = await r.request(method, path)
    assert response.status == status
    assert r.point().get("http.route") == route
    assert r.span.name == (f"{method} {route}" if route else method)


@pytest.mark.parametrize("root", ["", "/root"])
async def test_a_root_path_is_part_of_the_route(rig: Any, root: str) -> None:
    r = rig(nested())
    await r.request("GET", f"{root}/wrapped/acme/items/x", root_path=root)
    await r.request("GET", f"{root}/plain/acme", root_path=root)
    assert [s.name for s in r.spans] == [f"GET {root}/wrapped/{{tenant}}/items/{{item}}", f"GET {root}/plain/{{x}}"]


@pytest.mark.filterwarnings("ignore:The `root_path` parameter is deprecated")
async def test_a_root_path_of_fastapis_own_is_part_of_the_route(rig: Any) -> None:
    sub = FastAPI(root_path="/elsewhere", routes=[Route("/plain/{x}", page)])
    app = FastAPI(root_path="/api", routes=[Mount("/sub/{tenant}", app=sub), Route("/plain/{x}", page)])
    r = rig(app)
    await r.request("GET", "/api/plain/acme")
    assert r.span.name == "GET /api/plain/{x}"
    await r.request("GET", "/api/sub/acme/plain/x")
    assert "acme" not in r.spans[-1].name, "the sub-application has replaced the root that it is mounted at"


@pytest.mark.parametrize(
    ("path", "headers", "route"),
    [
        ("/in/acme/items/9", {"host": "X.example.org:8000"}, "/in/{tenant}/items/{item}"),
        ("/in/acme/items/9", {"host": "a.example.com"}, "/in/{other}/items/{item}"),
        ("/in/acme/sub/9/", {"host": "a.example.com"}, "/in/{other}/sub/{item}/"),
        ("/in/acme/items/9", {"host": "elsewhere.net"}, None),
    ],
)
async def test_under_hosts_the_route_is_that_of_the_host_that_matched(
    rig: Any, path: str, headers: dict[str, str], route: str | None
) -> None:
    first = Host("{sub}.example.org", app=Router([Mount("/in/{tenant}", app=items())]))
    second = Host("{sub}.example.com", app=Router([Mount("/in/{other}", app=items())]))
    r = rig(Starlette(routes=[first, second]))
    await r.request("GET", path, headers)
    assert r.point().get("http.route") == route


async def test_a_value_that_a_route_has_hidden_is_never_taken_for_a_part_of_the_template() -> None:
    """The mount's ``item`` was ``acme``; the route's own ``item`` has replaced it in the parameters."""
    scope = {"root_path": "/t/acme", "app_root_path": "", "path_params": {"item": "9"}}
    assert route_of(scope | {"route": Route("/items/{item}", page)}) is None


@pytest.mark.parametrize("path", ["/t/acme/ws/lobby"])
async def test_a_websocket_in_a_mount_has_the_whole_route(rig: Any, path: str) -> None:
    async def talk(socket: Any) -> None:
        await socket.accept()
        await socket.close()

    r = rig(Starlette(routes=[Mount("/t/{tenant}", routes=[WebSocketRoute("/ws/{room}", talk)])]))
    await r.websocket(path, [])
    assert {s.name for s in r.spans} == {"GET /t/{tenant}/ws/{room}", "websocket /t/{tenant}/ws/{room}"}


def look() -> str:
    seen.append(TIER.get())
    return ""


def scoped() -> FastAPI:
    app = FastAPI()
    seen.clear()

    @app.get("/thread")
    def thread(dependency: Annotated[str, Depends(look)]) -> str:
        return look()

    @app.get("/background")
    async def background(tasks: BackgroundTasks) -> str:
        tasks.add_task(look)
        return ""

    @app.get("/chunks")
    async def chunks() -> StreamingResponse:
        return StreamingResponse(look() for _ in range(2))  # a sync iterator: each step in a thread

    async def late(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok", background=BackgroundTask(look))

    app.add_route("/late", late)
    return app


@pytest.mark.parametrize("base", [False, True], ids=["plain", "under BaseHTTPMiddleware"])
@pytest.mark.parametrize(("path", "count"), [("/thread", 2), ("/background", 1), ("/chunks", 2), ("/late", 1)])
async def test_threads_tasks_and_streams_see_the_scope_of_their_request(
    rig: Any, path: str, count: int, base: bool
) -> None:
    """BaseHTTPMiddleware runs what is inside it in a task group of its own, with a copy of the contextvars."""
    app = scoped()
    if base:

        async def dispatch(request: Request, call_next: Any) -> Any:
            return await call_next(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        TIER.set("gold")
        await app(scope, receive, send)

    r = rig(outer)
    await r.request("GET", path)
    assert seen == ["gold"] * count
    assert r.span.name == f"GET {path}"
