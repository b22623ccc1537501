"""FastAPI's and Starlette's own tracing: suppressed unless kept, wherever the middleware stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import BackgroundTasks, FastAPI, WebSocket
from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.context.current import ContextKey

telemetry = pytest.importorskip("fastapi.telemetry._runtime", reason="this FastAPI has no tracing of its own")
own = pytest.importorskip("starlette.middleware.opentelemetry", reason="this Starlette has no tracing of its own")

Options = dict[str, Any]
TIER = ContextKey("asgi.native.tier", str)
seen: list[str | None] = []


def application(**options: Any) -> FastAPI:
    app = FastAPI(**options)

    @app.get("/items/{item}")
    def item(item: str) -> str:
        return item

    @app.get("/boom")
    def boom() -> None:
        raise KeyError("boom")

    @app.get("/async")
    async def coroutine() -> str | None:
        return TIER.get()

    @app.get("/thread")
    def thread() -> str | None:
        return TIER.get()

    @app.get("/background")
    async def background(tasks: BackgroundTasks) -> str:
        tasks.add_task(lambda: seen.append(TIER.get()))
        return "gold"

    @app.websocket("/ws")
    async def ws(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    return app


class Passing(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


def added(options: Options, *around: Any) -> FastAPI:
    app = application()
    app.add_middleware(ContextMiddleware, **options)
    for middleware in around:
        app.add_middleware(middleware)
    return app


def in_a_mount(options: Options) -> Starlette:
    return Starlette(routes=[Mount("/", ContextMiddleware(application(), **options))])


def around_a_mount(options: Options) -> FastAPI:
    app = FastAPI()
    app.add_middleware(ContextMiddleware, **options)
    app.mount("/", application())
    return app


def twice(options: Options) -> ContextMiddleware:
    return ContextMiddleware(added(options), **options)


PLACED: dict[str, Callable[[Options], Any]] = {
    "wrapped": lambda options: ContextMiddleware(application(), **options),
    "added": added,
    "added, with BaseHTTPMiddleware outside": lambda options: added(options, Passing),
    "given to FastAPI()": lambda options: application(middleware=[Middleware(ContextMiddleware, **options)]),
    "wrapped and added": twice,
    "added twice": lambda options: added(options, lambda app: ContextMiddleware(app, **options)),
    "in a mount": in_a_mount,
    "around a mount": around_a_mount,
}


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> InMemoryLogRecordExporter:
    exporter = InMemoryLogRecordExporter()
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    monkeypatch.setattr(_logs._internal, "_LOGGER_PROVIDER", provider)
    return exporter


@pytest.fixture
def placed(rig: Any, logs: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A rig around an application, whose providers are the global ones as well."""

    def make(where: str, **extra: Any) -> Any:
        r = rig(None)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", r.tracers)
        monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", r.meters)
        r.app = PLACED[where]({"node": r.app._node, **extra})
        return r

    return make


def servers(r: Any) -> list[str]:
    return sorted(s.instrumentation_scope.name for s in r.spans if s.kind is trace.SpanKind.SERVER)


@pytest.mark.parametrize("where", PLACED)
async def test_a_request_has_our_span_and_our_point_alone(placed: Any, where: str) -> None:
    """From the first request on, before which nothing may have been built."""
    r = placed(where)
    for n in range(1, 3):
        response = await r.request("GET", "/items/x")
        assert response.status == 200
        assert servers(r) == ["otelctx"] * n
    assert len(r.spans) == 2, "nor is there a span of an operation"
    (point,) = r.points("http.server.request.duration")
    assert (point.count, point.attributes["http.route"]) == (2, "/items/{item}")
    assert all(active.value == 0 for active in r.points("http.server.active_requests"))


@pytest.mark.parametrize("where", PLACED)
async def test_an_exception_is_on_our_span_and_in_no_log_record_of_fastapi(placed: Any, logs: Any, where: str) -> None:
    r = placed(where)
    with pytest.raises(KeyError):
        await r.request("GET", "/boom")
    assert servers(r) == ["otelctx"]
    assert [e.name for e in r.span.events] == ["exception"]
    assert logs.get_finished_logs() == ()


@pytest.mark.parametrize("where", PLACED)
async def test_a_websocket_has_our_spans_alone(placed: Any, where: str) -> None:
    r = placed(where)
    await r.websocket("/ws", [])
    assert {s.instrumentation_scope.name for s in r.spans} == {"otelctx"}
    assert servers(r) == ["otelctx"]


@pytest.mark.parametrize("where", ["wrapped", "added", "in a mount", "wrapped and added"])
async def test_kept_fastapi_traces_as_well(placed: Any, where: str) -> None:
    r = placed(where, native="keep")
    await r.request("GET", "/items/x")
    assert servers(r) == ["fastapi", "otelctx"]
    assert "fastapi.telemetry" not in r.last_scope, "nor is there a word of ours"


@pytest.mark.parametrize("path", ["/async", "/thread", "/background"])
async def test_kept_fastapi_replaces_the_context_and_the_scope_is_seen_all_the_same(placed: Any, path: str) -> None:
    """It attaches a Context that it has extracted itself, which holds nothing of ours."""
    seen.clear()
    r = placed("wrapped", native="keep")
    inner = r.app.app

    async def between(scope: Any, receive: Any, send: Any) -> None:
        TIER.set("gold")
        await inner(scope, receive, send)

    r.app.app = between
    response = await r.request("GET", path)
    assert response.body == b'"gold"'
    assert seen == (["gold"] if path == "/background" else [])


async def test_suppressed_in_one_application_it_is_not_suppressed_in_another(placed: Any, rig: Any) -> None:
    r = placed("added")
    await r.request("GET", "/items/x")
    r.app = application()
    await r.request("GET", "/items/x")
    assert servers(r) == ["fastapi", "otelctx"]


async def test_fastapi_still_sets_up_exporters_where_it_is_to(placed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so when it starts, for the signals that are on: suppressing them would leave us without a provider."""
    asked: list[tuple[bool, bool, bool]] = []
    monkeypatch.setattr(
        telemetry,
        "_configure_from_environment",
        lambda config: asked.append((config["tracing"], config["metrics"], config["logs"])),
    )
    r = placed("wrapped")
    app = application(telemetry={"auto_configure": True})
    app.add_middleware(ContextMiddleware, node=r.app._node)
    messages = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]

    async def receive() -> Any:
        return messages.pop()

    async def send(message: Any) -> None:
        pass

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert asked == [(True, True, True)]
    r.app = app
    await r.request("GET", "/items/x")
    await r.request("GET", "/items/x")
    assert servers(r) == ["otelctx"] * 2
    (point,) = r.points("http.server.request.duration")
    assert point.count == 2


@pytest.mark.parametrize("native", ["suppress", "keep"])
@pytest.mark.parametrize("where", ["app", "mount"])
async def test_starlettes_own_middleware_inside_is_suppressed_unless_kept(rig: Any, native: Any, where: str) -> None:
    async def page(request: Any) -> PlainTextResponse:
        return PlainTextResponse("ok")

    r = rig(None)
    middleware = [Middleware(own.OpenTelemetryMiddleware, tracer_provider=r.tracers)]
    routes = [Route("/items/{item}", page)]
    app = Starlette(routes=routes, middleware=middleware if where == "app" else [])
    if where == "mount":
        app = Starlette(routes=[Mount("/", routes=routes, middleware=middleware)])
    options = {"tracer_provider": r.tracers, "meter_provider": r.meters}
    r.app = ContextMiddleware(app, node=r.app._node, native=native, **options)
    await r.request("GET", "/items/x")
    assert servers(r) == (["otelctx"] if native == "suppress" else ["otelctx", "starlette"])
