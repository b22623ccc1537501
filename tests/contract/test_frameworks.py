"""What frameworks don't promise and we stand on. When one of these fails, a framework has changed; the message says
what of ours has to follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from litestar import Litestar, asgi, get
from litestar.params import FromPath
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from quart import Quart
from quart.globals import request_ctx
from quart.signals import request_started
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route

Scope = dict[str, Any]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


async def call(app: Any, path: str = "/items/x", method: str = "GET", **extra: Any) -> Scope:
    """One request; the scope as it is afterwards."""
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"a.test")],
        "client": ("192.0.2.7", 4711),
        "server": ("127.0.0.1", 8000),
        "state": {},
        **extra,
    }
    pending = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if pending:
            return pending.pop()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        pass

    await app(scope, receive, send)
    return scope


def fastapi() -> FastAPI:
    app, router = FastAPI(), APIRouter()

    @router.get("/{item}")
    def item(item: str) -> str:
        return item

    app.include_router(router, prefix="/items")
    return app


async def page(request: Any) -> PlainTextResponse:
    return PlainTextResponse("ok")


# FastAPI's own tracing


def tells(package: str, ours: str) -> str:
    return f"{package} {version(package)} has changed: {ours}"


SILENT = "otelctx.asgi.native has to learn how FastAPI's own tracing is switched off now"


async def test_fastapi_traces_by_itself(spans: InMemorySpanExporter) -> None:
    """Else there is nothing to suppress, and the tests of it can't fail."""
    pytest.importorskip("fastapi.telemetry", reason="this FastAPI has no tracing of its own")
    await call(fastapi())
    assert [s.instrumentation_scope.name for s in spans.get_finished_spans() if s.kind is trace.SpanKind.SERVER] == [
        "fastapi"
    ], tells("fastapi", "it doesn't trace by itself any more, so that native= is without an effect")


async def test_a_word_in_the_scope_keeps_fastapi_silent(spans: InMemorySpanExporter) -> None:
    pytest.importorskip("fastapi.telemetry", reason="this FastAPI has no tracing of its own")
    await call(fastapi(), **{"fastapi.telemetry": None})
    assert spans.get_finished_spans() == (), tells("fastapi", f"'fastapi.telemetry' in the scope is ignored. {SILENT}")


@pytest.mark.parametrize("switch", [{"tracing": False, "metrics": False, "logs": False}, {"exclude": lambda _: True}])
async def test_the_switches_of_fastapi_are_reached_through_its_router(
    spans: InMemorySpanExporter, switch: dict[str, Any]
) -> None:
    pytest.importorskip("fastapi.telemetry", reason="this FastAPI has no tracing of its own")
    app = fastapi()
    config = getattr(getattr(app.router, "dependency_overrides_provider", None), "_telemetry", None)
    assert isinstance(config, dict), tells(
        "fastapi", f"router.dependency_overrides_provider._telemetry is gone. {SILENT}"
    )
    assert config.keys() >= {"tracing", "metrics", "logs", "auto_configure", "exclude"}, tells("fastapi", SILENT)
    config.update(switch)
    await call(app)
    assert spans.get_finished_spans() == (), tells("fastapi", f"its configuration is read once. {SILENT}")


async def test_a_word_in_the_scope_keeps_starlettes_middleware_silent(spans: InMemorySpanExporter) -> None:
    module = pytest.importorskip("starlette.middleware.opentelemetry", reason="this Starlette traces nothing by itself")
    app = module.OpenTelemetryMiddleware(PlainTextResponse("ok"))
    await call(app)
    assert len(spans.get_finished_spans()) == 1, tells("starlette", "its middleware doesn't trace")
    await call(app, **{"starlette.opentelemetry": True})
    assert len(spans.get_finished_spans()) == 1, tells(
        "starlette", "'starlette.opentelemetry' in the scope is ignored; otelctx.asgi.others has to learn the new word"
    )


# where routes are found

ROUTE = "otelctx.asgi.route finds no route any more"
MOUNTS = "otelctx.asgi.mounts finds no template of a mount any more"


async def test_starlette_leaves_route_or_endpoint_and_router() -> None:
    app = Starlette(routes=[Mount("/t/{tenant}", routes=[Route("/items/{item}", page)]), Host("x", Starlette())])
    scope = await call(app, "/t/acme/items/x")
    if "route" in scope:  # Starlette 1.0 has the endpoint alone
        assert scope["route"].path_format == "/items/{item}", tells("starlette", ROUTE)
    assert scope["endpoint"] is page, tells("starlette", ROUTE)
    assert (scope["app_root_path"], scope["root_path"]) == ("", "/t/acme"), tells("starlette", MOUNTS)
    mount, host = scope["router"].routes
    assert mount.path_format == "/t/{tenant}/{path}", tells("starlette", MOUNTS)
    assert mount.path_regex.match("/t/acme/")["path"] == "", tells("starlette", MOUNTS)
    assert len(mount.routes) == 1
    assert host.host_regex.match("x"), tells("starlette", MOUNTS)


async def test_fastapi_leaves_the_route_as_it_is_included() -> None:
    scope = await call(fastapi())
    included = scope.get("fastapi", {}).get("effective_route_context", scope["route"])
    assert included.path_format == "/items/{item}", tells("fastapi", ROUTE)


async def test_fastapi_leaves_the_endpoint_of_a_route_that_is_not_its_own() -> None:
    app = FastAPI(routes=[Route("/items/{item}", page)])
    scope = await call(app)
    assert scope["endpoint"] is page, tells("fastapi", ROUTE)
    assert any(getattr(route, "endpoint", None) is page for route in scope["router"].routes), tells("fastapi", ROUTE)


async def test_litestar_leaves_template_handler_and_application() -> None:
    @get("/items/{item:str}")
    async def item(item: FromPath[str]) -> str:
        return item

    @asgi("/mount", is_mount=True, copy_scope=False)
    async def mount(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("ok")(scope, receive, send)

    app = Litestar([item, mount], logging_config=None)
    assert (await call(app))["path_template"] == "/items/{item}", tells("litestar", ROUTE)
    scope = await call(app, "/mount/x")
    assert scope["path_template"] == "", tells("litestar", MOUNTS)
    routes = [r for r in scope["litestar_app"].routes if getattr(r, "route_handler", None) is scope["route_handler"]]
    assert [route.path for route in routes] == ["/mount"], tells("litestar", MOUNTS)


async def test_quart_says_when_a_request_starts_and_what_it_has_matched() -> None:
    app = Quart(__name__)
    seen: list[Any] = []

    @app.get("/items/<item>")
    async def item(item: str) -> str:
        return item

    async def started(sender: Any, **_: Any) -> None:
        seen.append(request_ctx.request.url_rule and request_ctx.request.url_rule.rule)
        seen.append(request_ctx.url_adapter.match(method="GET", return_rule=True)[0].rule)

    request_started.connect(started, app)
    await call(app)
    await call(app, method="DELETE")
    assert seen == ["/items/<item>"] * 2 + [None, "/items/<item>"], tells("quart", "otelctx.asgi.quart finds no rule")


@pytest.mark.parametrize("name", ["sync_capable", "async_capable"])
def test_djangos_middleware_is_told_what_it_can(name: str) -> None:
    """Read off the class by ``BaseHandler.load_middleware``; its other side is in tests/asgi/test_routes_django.py."""
    from django.core.handlers import base

    load: Callable[..., Any] = base.BaseHandler.load_middleware
    assert name in str(load.__code__.co_consts), tells("django", "otelctx.asgi.django runs in a thread of its own")
