"""Applications that know nothing of otelctx: one SERVER span with its route, as soon as they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.context.current import current_scope

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


def scoped() -> str:
    return "yes" if current_scope() is not None else "no"


def starlette_app() -> Any:
    async def item(request: Request) -> PlainTextResponse:
        return PlainTextResponse(scoped())

    return Starlette(routes=[Route("/items/{item}", item)])


def fastapi_app() -> Any:
    app = FastAPI()

    @app.get("/items/{item}")
    async def item(item: int) -> str:
        return scoped()

    return app


def litestar_app() -> Any:
    litestar = pytest.importorskip("litestar", reason="Litestar is not installed")

    @litestar.get("/items/{item:int}")
    async def handler() -> str:
        return scoped()

    return litestar.Litestar([handler], logging_config=None)


def quart_app() -> Any:
    app = pytest.importorskip("quart", reason="Quart is not installed").Quart(__name__)

    @app.get("/items/<int:item>")
    async def handler(item: int) -> str:
        return scoped()

    return app


APPS: dict[str, tuple[Callable[[], Any], str]] = {
    "starlette": (starlette_app, "/items/{item}"),
    "fastapi": (fastapi_app, "/items/{item}"),
    "litestar": (litestar_app, "/items/{item}"),
    "quart": (quart_app, "/items/<int:item>"),
}


async def ask(app: Any, path: str = "/items/7", root_path: str = "") -> Any:
    transport = httpx.ASGITransport(app, root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://example.org") as client:
        return await client.get(path, headers=HEADERS)


@pytest.fixture
def quiet_clients(zero: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own client shall make no span."""
    monkeypatch.setattr("otelctx.auto.clients.instrument", lambda client: client)


@pytest.mark.parametrize("name", list(APPS))
async def test_an_application_has_one_server_span_with_its_route(zero: Any, quiet_clients: None, name: str) -> None:
    make, route = APPS[name]
    response = await ask(make())
    assert (response.status_code, response.text.strip('"')) == (200, "yes")
    span = zero.one("SERVER")
    assert (span.name, span.attributes["http.route"]) == (f"GET {route}", route)
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert {s.instrumentation_scope.name for s in zero.spans()} == {"otelctx"}, "native tracing is inside, and silent"


@pytest.mark.parametrize("name", list(APPS))
async def test_after_the_end_it_has_none(zero: Any, quiet_clients: None, name: str) -> None:
    make, _ = APPS[name]
    app = make()
    cls = next(c for c in type(app).__mro__ if "__call__" in vars(c))
    assert inspect.iscoroutinefunction(cls.__call__), "servers look at this"
    zero.patches.stop()
    assert (await ask(app)).text.strip('"') == "no"
    assert [s for s in zero.spans() if s.instrumentation_scope.name == "otelctx"] == []


async def test_an_application_that_is_mounted_belongs_to_the_outer_ones_request(zero: Any, quiet_clients: None) -> None:
    outer = Starlette(routes=[Mount("/api", app=fastapi_app())])
    assert (await ask(outer, "/api/items/7")).status_code == 200
    assert zero.one("SERVER").name == "GET /api/items/{item}"


async def test_two_applications_do_not_mix(zero: Any, quiet_clients: None) -> None:
    one, other = starlette_app(), Starlette()
    assert [(await ask(app)).status_code for app in (one, other, one)] == [200, 404, 200]
    assert [s.name for s in zero.spans("SERVER")] == ["GET /items/{item}", "GET", "GET /items/{item}"]


async def test_a_middleware_that_the_application_brings_along_passes_through(zero: Any, quiet_clients: None) -> None:
    app = fastapi_app()
    app.add_middleware(ContextMiddleware)
    await ask(app)
    assert zero.one("SERVER").name == "GET /items/{item}"


async def test_excluded_paths_have_no_span_and_their_context_all_the_same(zero: Any, quiet_clients: None) -> None:
    zero.options["excluded"] = ["/items/*"]
    assert (await ask(starlette_app())).text == "yes"
    assert zero.spans() == []


async def test_lifespans_go_through_and_flush_once_at_their_end(zero: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that does not answer is waited for once, though FastAPI's class and its base both have their turn."""
    started: list[str] = []
    monkeypatch.setattr("otelctx.asgi.flush.flush", lambda: started.append("flushed"))

    async def lifespan(app: Any) -> Any:
        started.append("up")
        yield
        started.append("down")

    app = FastAPI(lifespan=asynccontextmanager(lifespan))
    incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        assert message["type"].endswith("complete")

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert started == ["up", "down", "flushed"]
