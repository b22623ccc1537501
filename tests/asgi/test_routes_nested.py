"""Whatever is nested in whatever: a route is a template, and no value of a parameter is ever in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router

from otelctx.asgi.route import route_of

VALUE, WRITTEN = "5ecret", "731"


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


class Opaque:
    """Middleware that nothing can be seen through."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._inner(scope, receive, send)


def mounted(kind: str, path: str, inner: Any) -> Any:
    """An application with ``inner`` at ``path``, in one of the ways in which that can be done."""
    mount = Mount(path, app=inner)
    if kind == "starlette":
        return Starlette(routes=[Route("/other", page), mount])
    if kind == "fastapi":
        return FastAPI(routes=[mount], openapi_url=None)
    if kind == "included":
        app, router = FastAPI(openapi_url=None), APIRouter()
        router.mount(path, inner)
        app.include_router(router)
        return app
    if kind == "wrapped":
        return GZipMiddleware(Router([mount]))
    if kind == "opaque":
        return Opaque(Router([mount]))
    return Router([Host("{sub}.test", app=Router([mount])), Host("{other}", app=Router([mount]))])


KINDS = st.sampled_from(["starlette", "fastapi", "included", "wrapped", "opaque", "host"])
SEGMENTS = st.sampled_from(["/a", "/b", "/{x}", "/{y}", "/{x:path}", "/v{z}", "/{n:int}", "/{x}/c/{y}"])
LEAVES = st.sampled_from(["/", "/items", "/items/{x}", "/items/{item}", "/{y}", "/{rest:path}"])


def filled(template: str, number: int) -> str:
    """A path that ``template`` matches; its values, and those of no other ``number``, have the number in them."""
    template = template.replace("{n:int}", f"00{WRITTEN}{number}")
    return re.sub(r"\{(\w+)(:path)?\}", lambda found: f"{VALUE}-{number}-{found[1]}", template)


async def ask(app: Any, path: str, host: bytes) -> Any:
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "scheme": "http",
        "server": ("x", 80),
        "headers": [(b"host", host)],
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            scope["status"] = message["status"]

    await app(scope, receive, send)
    return scope


@given(st.lists(st.tuples(KINDS, SEGMENTS), max_size=4), LEAVES, st.booleans())
async def test_no_value_of_a_parameter_is_ever_in_a_route(
    levels: Sequence[tuple[str, str]], leaf: str, exists: bool
) -> None:
    app: Any = Router([Route(leaf, page)])
    for kind, segment in reversed(levels):
        app = mounted(kind, segment, app)
    path = "".join(filled(segment, number) for number, (_, segment) in enumerate(levels))
    path += filled(leaf, 9) if exists else f"/no/{VALUE}/{WRITTEN}"
    scope = await ask(app, path, f"{VALUE}.test".encode())
    route = route_of(scope)
    assert VALUE not in str(route)
    assert WRITTEN not in str(route)
    plain = {"starlette", "fastapi", "wrapped", "host"}
    if scope["status"] == 200 and all(kind in plain and ":path" not in segment for kind, segment in levels):
        assert route is not None
        assert route.count("/") == "".join(s for _, s in levels).count("/") + leaf.count("/")
