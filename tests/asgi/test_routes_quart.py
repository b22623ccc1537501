"""Routes, scopes and threads under Quart, with ``name_routes``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from quart import Blueprint, Quart, abort, request, websocket
from quart.utils import run_sync
from starlette.applications import Starlette
from starlette.routing import Mount

from otelctx import errors
from otelctx.asgi.quart import name_routes
from otelctx.context.current import ContextKey

TIER = ContextKey("asgi.quart.tier", str)


def make(seen: list[str | None], *, named: bool = True) -> Quart:
    app = Quart(__name__)
    shop, tenant = Blueprint("shop", __name__), Blueprint("tenant", __name__)

    @app.before_request
    async def guard() -> Any:
        return ("no", 401) if "x-forbidden" in request.headers else None

    @app.get("/")
    async def index() -> str:
        return "ok"

    @app.route("/users/<int:user_id>", methods=["GET", "POST"])
    async def user(user_id: int) -> str:
        seen.append(TIER.get())
        return "ok"

    @app.get("/sync/<name>")
    def sync(name: str) -> str:
        seen.append(TIER.get())
        TIER.set("from a thread")
        return "ok"

    @app.get("/run-sync")
    async def runs() -> str:
        seen.append(await run_sync(TIER.get)())
        return "ok"

    @app.get("/task")
    async def task() -> str:
        async def work() -> None:
            seen.append(TIER.get())

        app.add_background_task(work)
        return "ok"

    @app.get("/stream")
    async def stream() -> Any:
        async def body() -> Any:
            for n in range(3):
                seen.append(TIER.get())
                yield f"{n}\n"

        return body()

    @app.get("/boom")
    async def boom() -> str:
        raise RuntimeError("boom")

    @app.get("/gone/<path:what>")
    async def gone(what: str) -> str:
        abort(410)

    @shop.get("/items/<item>")
    async def item(tenant: str, item: str) -> str:
        return "ok"

    @app.websocket("/ws/<room>")
    async def ws(room: str) -> None:
        seen.append(TIER.get())
        await websocket.send(await websocket.receive())

    tenant.register_blueprint(shop, url_prefix="/shop")
    app.register_blueprint(tenant, url_prefix="/tenants/<tenant>")
    return name_routes(app) if named else app


async def ask(r: Any, method: str, path: str, headers: dict[str, str] | None = None, **extra: Any) -> Any:
    """Quart listens for the disconnect beside the handler, so it must not come before the response."""
    pending = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if pending:
            return pending.pop()
        await asyncio.Event().wait()

    return await r.request(method, path, {"host": "x.test", **(headers or {})}, receive=receive, **extra)


@pytest.mark.parametrize(
    ("method", "path", "status", "route"),
    [
        ("GET", "/", 200, "/"),
        ("GET", "/users/7", 200, "/users/<int:user_id>"),
        ("HEAD", "/users/7", 200, "/users/<int:user_id>"),
        ("OPTIONS", "/users/7", 200, "/users/<int:user_id>"),
        ("DELETE", "/users/7", 405, "/users/<int:user_id>"),
        ("DELETE", "/tenants/acme//shop/items/x", 405, None),  # of a GET it would have been a redirect
        ("GET", "/sync/x", 200, "/sync/<name>"),
        ("GET", "/boom", 500, "/boom"),
        ("GET", "/gone/a/b", 410, "/gone/<path:what>"),
        ("GET", "/tenants/acme/shop/items/x", 200, "/tenants/<tenant>/shop/items/<item>"),
        ("GET", "/nowhere/acme", 404, None),
    ],
)
async def test_quarts_route_is_the_rule_with_its_blueprints(
    rig: Any, method: str, path: str, status: int, route: str | None
) -> None:
    r = rig(make([]))
    response = await ask(r, method, path)
    assert response.status == status
    assert r.point().get("http.route") == route
    assert r.span.attributes.get("http.route") == route
    assert r.span.name == (f"{method} {route}" if route else method)


async def test_a_request_that_is_answered_before_its_handler_has_its_route(rig: Any) -> None:
    r = rig(make([]))
    response = await ask(r, "GET", "/users/7", {"x-forbidden": "1"})
    assert (response.status, r.span.name) == (401, "GET /users/<int:user_id>")


async def test_a_websocket_has_its_route(rig: Any) -> None:
    seen: list[str | None] = []
    r = rig(make(seen))
    message = {"type": "websocket.receive", "text": "hi", "bytes": None}
    answer = await r.websocket("/ws/acme", [message, {"type": "websocket.disconnect"}], {"host": "x.test"})
    assert {"type": "websocket.send", "bytes": None, "text": "hi"} in answer.messages
    assert {s.name for s in r.spans} == {"GET /ws/<room>", "websocket /ws/<room>"}


async def test_the_root_and_the_mounts_are_part_of_the_route(rig: Any) -> None:
    r = rig(make([]))
    await ask(r, "GET", "/base/users/7", root_path="/base")
    assert r.point()["http.route"] == "/base/users/<int:user_id>"
    r = rig(Starlette(routes=[Mount("/t/{tenant}", app=make([]))]))
    await ask(r, "GET", "/t/acme/users/7")
    assert r.point()["http.route"] == "/t/{tenant}/users/<int:user_id>"


async def test_without_the_hook_there_is_no_route(rig: Any) -> None:
    r = rig(make([], named=False))
    await ask(r, "GET", "/users/7")
    assert r.span.name == "GET"


@pytest.mark.parametrize(
    ("path", "inside"), [("/users/7", 1), ("/sync/x", 1), ("/run-sync", 1), ("/task", 1), ("/stream", 3)]
)
async def test_handlers_threads_tasks_and_streams_see_the_scope_of_their_request(
    rig: Any, path: str, inside: int
) -> None:
    seen: list[str | None] = []
    app = make(seen)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        TIER.set("gold")
        await app(scope, receive, send)
        await asyncio.gather(*app.background_tasks)
        seen.append(TIER.get())

    await ask(rig(outer), "GET", path)
    assert seen == ["gold"] * inside + ["from a thread" if path == "/sync/x" else "gold"]


def test_what_is_no_quart_application_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="Quart application, not Starlette"):
        name_routes(Starlette())
