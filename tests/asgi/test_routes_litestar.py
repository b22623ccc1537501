"""Routes, scopes and threads under Litestar."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar, Request, Router, asgi, get, post, websocket
from litestar.background_tasks import BackgroundTask
from litestar.connection import WebSocket
from litestar.exceptions import NotAuthorizedException
from litestar.middleware import DefineMiddleware
from litestar.params import FromPath
from litestar.response import Response, Stream
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.context.current import ContextKey

TIER = ContextKey("asgi.litestar.tier", str)
seen: list[str | None] = []


async def page(request: Any) -> PlainTextResponse:
    return PlainTextResponse("ok")


inner = Starlette(routes=[Route("/x/{y}/", page)])


@get("/")
async def index() -> str:
    seen.append(TIER.get())
    return "ok"


@get("/users/{user_id:int}")
async def user(user_id: FromPath[int]) -> str:
    return "ok"


@post("/users/{user_id:int}")
async def change(user_id: FromPath[int]) -> str:
    raise NotAuthorizedException


@get("/files/{file:path}")
async def files(file: FromPath[Path]) -> str:
    return "ok"


@get("/sync/{name:str}", sync_to_thread=True)
def sync(name: FromPath[str]) -> str:
    seen.append(TIER.get())
    TIER.set("from a thread")
    return "ok"


def work() -> None:
    seen.append(TIER.get())


@get("/background")
async def background() -> Response[str]:
    return Response("ok", background=BackgroundTask(work))


@get("/stream")
async def stream() -> Stream:
    async def body() -> AsyncIterator[str]:
        for n in range(3):
            seen.append(TIER.get())
            yield f"{n}\n"

    return Stream(body())


@get("/boom")
async def boom(request: Request[Any, Any, Any]) -> str:
    raise RuntimeError("boom")


@asgi("/seen", is_mount=True, copy_scope=False)
async def visible(scope: Any, receive: Any, send: Any) -> None:
    await inner(scope, receive, send)


@asgi(["/copied", "/twice"], is_mount=True, copy_scope=True)
async def copied(scope: Any, receive: Any, send: Any) -> None:
    await inner(scope, receive, send)


@asgi("/one", is_mount=True, copy_scope=True)
async def one(scope: Any, receive: Any, send: Any) -> None:
    await inner(scope, receive, send)


@websocket("/ws/{room:str}")
async def ws(socket: WebSocket[Any, Any, Any], room: FromPath[str]) -> None:
    await socket.accept()
    await socket.close()


def make(**options: Any) -> Litestar:
    seen.clear()
    tenant = Router("/tenants/{tenant:str}", route_handlers=[user])
    handlers: list[Any] = [index, user, change, files, sync, background, stream, boom, ws, tenant]
    return Litestar([*handlers, Router("/pre", route_handlers=[visible, copied, one])], logging_config=None, **options)


@pytest.mark.parametrize(
    ("method", "path", "status", "route"),
    [
        ("GET", "/", 200, "/"),
        ("GET", "/users/7", 200, "/users/{user_id}"),
        ("OPTIONS", "/users/7", 204, "/users/{user_id}"),
        ("POST", "/users/7", 401, "/users/{user_id}"),
        ("HEAD", "/users/7", 405, None),
        ("DELETE", "/users/7", 405, None),
        ("GET", "/users/acme", 404, None),
        ("GET", "/files/a/b/c", 200, "/files/{file}"),
        ("GET", "/tenants/acme/users/7", 200, "/tenants/{tenant}/users/{user_id}"),
        ("GET", "/sync/x", 200, "/sync/{name}"),
        ("GET", "/boom", 500, "/boom"),
        ("GET", "/nowhere/acme", 404, None),
        ("GET", "/pre/seen/x/acme", 200, "/pre/seen/x/{y}/"),
        ("GET", "/pre/one/x/acme", 200, "/pre/one"),
        ("GET", "/pre/copied/x/acme", 200, None),
    ],
)
async def test_litestars_route_is_the_template_with_its_routers_and_mounts(
    rig: Any, method: str, path: str, status: int, route: str | None
) -> None:
    """A mount that copies the scope hides what is inside; one with several paths can't be told from them."""
    r = rig(make())
    response = await r.request(method, path, {"host": "x.test"})
    assert response.status == status
    assert r.point().get("http.route") == route
    assert r.span.attributes.get("http.route") == route
    assert r.span.name == (f"{method} {route}" if route else method)


async def test_the_root_and_the_mounts_are_part_of_the_route(rig: Any) -> None:
    r = rig(make())
    await r.request("GET", "/base/users/7", root_path="/base")
    assert r.point()["http.route"] == "/base/users/{user_id}"
    r = rig(Starlette(routes=[Mount("/t/{user_id}", app=make())]))
    await r.request("GET", "/t/acme/users/7")
    assert r.point()["http.route"] == "/t/{user_id}/users/{user_id}"


async def test_a_mount_that_cannot_be_walked_gives_no_route(rig: Any) -> None:
    """Litestar has put its own parameters where the mount's were, so that a value can't be put back to its name."""
    r = rig(make())
    await r.request("GET", "/t/acme/users/7", root_path="/t/acme", app_root_path="", path_params={"tenant": "acme"})
    assert "http.route" not in r.point()


async def test_a_websocket_has_its_route(rig: Any) -> None:
    r = rig(make())
    await r.websocket("/ws/acme", [])
    assert {s.name for s in r.spans} == {"GET /ws/{room}", "websocket /ws/{room}"}


@pytest.mark.parametrize("path", ["/users/7", "/tenants/acme/users/7", "/boom"])
async def test_as_litestars_middleware_it_sees_the_same(rig: Any, path: str) -> None:
    r = rig(None)
    options = {"node": r.app._node, "tracer_provider": r.tracers, "meter_provider": r.meters}
    r.app = make(middleware=[DefineMiddleware(ContextMiddleware, **options)])
    await r.request("GET", path)
    assert r.span.name.startswith("GET /")
    assert "acme" not in r.span.name


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("DELETE", "/users/7", 405)])
async def test_as_litestars_middleware_it_never_gets_what_matches_no_route(
    rig: Any, method: str, path: str, status: int
) -> None:
    r = rig(None)
    options = {"node": r.app._node, "tracer_provider": r.tracers, "meter_provider": r.meters}
    r.app = make(middleware=[DefineMiddleware(ContextMiddleware, **options)])
    assert (await r.request(method, path)).status == status
    assert r.spans == []


@pytest.mark.parametrize(("path", "inside"), [("/", 1), ("/sync/x", 1), ("/background", 1), ("/stream", 3)])
async def test_handlers_threads_tasks_and_streams_see_the_scope_of_their_request(
    rig: Any, path: str, inside: int
) -> None:
    app = make()

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        TIER.set("gold")
        await app(scope, receive, send)
        seen.append(TIER.get())

    await rig(outer).request("GET", path)
    assert seen == ["gold"] * inside + ["from a thread" if path == "/sync/x" else "gold"]
