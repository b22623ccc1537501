"""Routes, the scope and what passes through, with the frameworks themselves."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import pytest
from fastapi import APIRouter, FastAPI
from opentelemetry import trace
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Host, Mount, Route, Router

from otelctx import errors
from otelctx.asgi.middleware import ContextMiddleware, wrap
from otelctx.asgi.route import route_of, set_route
from otelctx.context.current import ContextKey, UpKey, current_scope

TIER = ContextKey("asgi.test.tier", str)
SPENT = UpKey("asgi.test.spent", int, rule="sum")


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


def starlette_app(**options: Any) -> Starlette:
    tenants = Router([Route("/items/{item}", page), Route("/", page)])
    return Starlette(
        routes=[
            Route("/", page),
            Route("/users/{user_id:int}", page, methods=["GET"]),
            Mount("/api", routes=[Route("/users/{user_id}", page), Mount("/v{version:int}", app=tenants)]),
            Mount("/tenants/{tenant}", app=tenants),
            Mount("/clash/{item}", app=tenants),
            Mount("/opaque/{tenant}", app=PlainTextResponse("opaque")),
            Host("{sub}.example.org", app=Router([Mount("/in/{tenant}", app=tenants)])),
        ],
        **options,
    )


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/", "/"),
        ("/users/7", "/users/{user_id}"),
        ("/api/users/x", "/api/users/{user_id}"),
        ("/api/v3/items/9", "/api/v{version}/items/{item}"),
        ("/tenants/acme/items/9", "/tenants/{tenant}/items/{item}"),
        ("/tenants/acme/", "/tenants/{tenant}/"),
        ("/clash/acme/items/9", "/clash/{item}/items/{item}"),  # the inner value has replaced the outer one
        ("/opaque/acme/x/y", "/opaque/{tenant}"),
        ("/tenants/tenants/items/tenants", "/tenants/{tenant}/items/{item}"),
        ("/nowhere/acme", None),
    ],
)
@pytest.mark.parametrize("placed", ["inside", "outside"])
async def test_starlettes_route_is_the_template_with_all_its_mounts(
    rig: Any, path: str, route: str | None, placed: str
) -> None:
    r = rig(starlette_app())
    if placed == "inside":
        r = rig(lambda scope, receive, send: None)
        app = starlette_app()
        app.add_middleware(ContextMiddleware, node=r.app._node, tracer_provider=r.tracers, meter_provider=r.meters)
        r.app = app
    await r.request("GET", path)
    assert r.point().get("http.route") == route
    assert r.span.attributes.get("http.route") == route
    assert r.span.name == (f"GET {route}" if route else "GET")


async def test_a_method_that_is_not_allowed_has_the_route_too(rig: Any) -> None:
    r = rig(starlette_app())
    response = await r.request("DELETE", "/users/7")
    assert (response.status, r.span.name) == (405, "DELETE /users/{user_id}")


async def test_under_a_host_the_route_of_a_mount_is_put_back_from_its_values(rig: Any) -> None:
    r = rig(starlette_app())
    await r.request("GET", "/in/acme/items/9", {"host": "x.example.org"})
    assert r.span.attributes.get("http.route") in ("/in/{tenant}/items/{item}", None)
    assert "acme" not in str(r.point())


@pytest.mark.parametrize(
    ("scope", "route"),
    [
        ({"path_template": "/litestar/{x:int}"}, "/litestar/{x:int}"),
        ({"route": object()}, None),
        ({"root_path": "/api", "route": Route("/a/{b}", page)}, "/api/a/{b}"),
        # a mount by a router that can't be walked
        (
            {
                "root_path": "/t/acme",
                "app_root_path": "",
                "path_params": {"tenant": "acme", "b": "1"},
                "route": Route("/a/{b}", page),
            },
            "/t/{tenant}/a/{b}",
        ),
        # its value is not to be found as it stands: rather no route
        (
            {
                "root_path": "/t/007",
                "app_root_path": "",
                "path_params": {"tenant": 7, "b": "1"},
                "route": Route("/a/{b}", page),
            },
            None,
        ),
        ({"root_path": "/x/t", "app_root_path": "/x", "path_params": {}, "route": Route("/a", page)}, "/x/t/a"),
    ],
)
def test_the_route_from_a_scope(scope: dict[str, Any], route: str | None) -> None:
    assert route_of(scope) == route


async def test_the_application_may_name_the_route_itself(rig: Any, ok: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        set_route("/mine/{id}")
        await ok(send)

    r = rig(app)
    await r.request("GET", "/mine/1")
    assert (r.span.name, r.point()["http.route"]) == ("GET /mine/{id}", "/mine/{id}")
    set_route("/nobody")  # outside a request it does nothing


def fastapi_app() -> FastAPI:
    app = FastAPI(root_path="")
    router = APIRouter(prefix="/items")
    sub = FastAPI()

    @router.get("/{item_id}")
    def item(item_id: int) -> dict[str, int]:
        TIER.set("gold")
        SPENT.record(item_id)
        return {"item": item_id}

    @app.get("/branches")
    async def branches() -> dict[str, int]:
        async def one(n: int) -> None:
            SPENT.record(n)
            TIER.set(f"t{n}")

        await asyncio.gather(one(1), one(2))
        return {}

    @app.get("/limit")
    async def limit() -> dict[str, int]:
        raise errors.TokenLimitExceeded("too long", n_prompt_tokens=9)

    @sub.get("/things/{thing_id}")
    def thing(thing_id: str) -> dict[str, str]:
        return {}

    app.include_router(router, prefix="/shop")
    app.mount("/tenants/{tenant}", sub)
    return app


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/shop/items/4", "/shop/items/{item_id}"),
        ("/tenants/acme/things/x", "/tenants/{tenant}/things/{thing_id}"),
        ("/branches", "/branches"),
        ("/shop/items/not-a-number", "/shop/items/{item_id}"),
        ("/nowhere", None),
    ],
)
async def test_fastapis_route_with_prefixes_and_mounts(rig: Any, path: str, route: str | None) -> None:
    r = rig(fastapi_app())
    await r.request("GET", path)
    assert r.point().get("http.route") == route
    assert r.span.name == (f"GET {route}" if route else "GET")


class Reader:
    """A layer outside the application and inside the middleware, which sees what the scope holds at the end."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.seen: list[tuple[str | None, int | None]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)
        scope = current_scope()
        assert scope is not None
        self.seen.append((TIER.get(), SPENT.get()))


@pytest.mark.parametrize("base", [False, True], ids=["plain", "under BaseHTTPMiddleware"])
@pytest.mark.parametrize(("path", "tier", "spent"), [("/shop/items/4", "gold", 4), ("/branches", "t2", 3)])
async def test_a_value_set_in_a_sync_endpoint_or_a_branch_reaches_the_outer_middleware(
    rig: Any, base: bool, path: str, tier: str, spent: int
) -> None:
    app = fastapi_app()
    if base:

        async def dispatch(request: Request, call_next: Any) -> Any:
            return await call_next(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
    reader = Reader(app)
    r = rig(reader)
    await r.request("GET", path)
    await r.request("GET", "/nowhere")
    assert reader.seen == [(tier, spent), (None, 0)], "and nothing of it is left in the next request"


async def test_under_fastapi_an_error_of_ours_is_answered(rig: Any) -> None:
    r = rig(lambda scope, receive, send: None)
    app = fastapi_app()
    app.add_middleware(ContextMiddleware, node=r.app._node, tracer_provider=r.tracers, meter_provider=r.meters)
    r.app = app
    response = await r.request("GET", "/limit")
    assert response.status == 400
    assert b"context_length_exceeded" in response.body
    assert r.span.name == "GET /limit"


async def test_under_basehttpmiddleware_an_error_of_ours_is_answered_too(rig: Any) -> None:
    async def dispatch(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    async def fails(request: Request) -> PlainTextResponse:
        raise errors.SessionBusy("busy")

    r = rig(lambda scope, receive, send: None)
    app = Starlette(routes=[Route("/", fails)])
    app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
    app.add_middleware(ContextMiddleware, node=r.app._node, tracer_provider=r.tracers, meter_provider=r.meters)
    r.app = app
    assert (await r.request("GET", "/")).status == 409


async def test_wrapped_twice_the_inner_one_steps_aside(rig: Any, ok: Any) -> None:
    r = rig(wrap(wrap(lambda scope, receive, send: ok(send))))
    await r.request()
    await r.request()
    assert len(r.spans) == 2


async def test_other_scopes_pass_through_untouched(rig: Any) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    r = rig(app)
    scope, receive, send = {"type": "something.new"}, object(), object()
    await r.app(scope, receive, send)
    ((got, got_receive, got_send),) = seen
    assert got is scope
    assert scope == {"type": "something.new"}
    assert (got_receive, got_send) == (receive, send)


async def test_a_lifespans_messages_pass_through_as_they_are(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope is given
        for word in ("startup", "shutdown"):
            assert await receive() == {"type": f"lifespan.{word}", "n": word}
            await send({"type": f"lifespan.{word}.complete", "n": word})

    given: dict[str, Any] = {"type": "lifespan", "state": {}}
    incoming = [{"type": f"lifespan.{word}", "n": word} for word in ("startup", "shutdown")]
    sent = AsyncMock()
    await rig(app).app(given, AsyncMock(side_effect=incoming), sent)
    assert [call.args[0]["type"] for call in sent.await_args_list] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert [call.args[0]["n"] for call in sent.await_args_list] == ["startup", "shutdown"]


async def test_a_streaming_response_owns_span_and_context_to_its_last_chunk(rig: Any) -> None:
    """Its body runs after the endpoint has returned."""
    spans: list[Any] = []

    async def endpoint(request: Request) -> StreamingResponse:
        async def body() -> Any:
            for n in range(5):
                SPENT.record(1)
                spans.append(trace.get_current_span().get_span_context().span_id)
                yield f"data: {n}\n\n"

        return StreamingResponse(body())

    reader = Reader(Starlette(routes=[Route("/stream", endpoint)]))
    r = rig(reader)
    response = await r.request("GET", "/stream")
    assert response.body.count(b"data") == 5
    assert reader.seen == [(None, 5)]
    assert set(spans) == {r.span.context.span_id}
    assert r.span.attributes["otelctx.response.chunks"] == 6, "the last one is empty"
    assert r.span.attributes["otelctx.response.time_to_first_byte"] >= 0


def test_another_instrumentation_is_warned_about(caplog: pytest.LogCaptureFixture, ok: Any) -> None:
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware as Contrib

    wrap(Contrib(lambda scope, receive, send: ok(send)))
    assert "opentelemetry.instrumentation.asgi" in caplog.text


def test_no_warning_without_one(caplog: pytest.LogCaptureFixture) -> None:
    wrap(starlette_app())
    assert caplog.text == ""


@pytest.mark.parametrize(
    "options",
    [{"server_span": "mine"}, {"native": True}, {"untrusted_trace": "drop"}, {"excluded": "health"}],
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigError):
        wrap(lambda scope, receive, send: None, **options)


def test_settings_that_mean_nothing_are_reported_where_an_application_is_wrapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not by a 500 for each request."""
    monkeypatch.setattr("otelctx.exchange.node._default", None)
    monkeypatch.setenv("OTELCTX_KEYS", "garbage")
    with pytest.raises(errors.ConfigError, match="OTELCTX_KEYS"):
        wrap(lambda scope, receive, send: None)
