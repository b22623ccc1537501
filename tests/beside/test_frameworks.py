"""One SERVER span with the instrumentors of frameworks, in whichever order an application sets them up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import fastapi
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from otelctx.asgi.middleware import ContextMiddleware, wrap

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OURS, THEIRS = "otelctx", "opentelemetry.instrumentation.fastapi"


def application() -> fastapi.FastAPI:
    app = fastapi.FastAPI()  # looked up here: a global instrumentor puts its own class there

    @app.get("/items/{item}")
    async def item(item: int) -> dict[str, int]:
        return {"item": item}

    @app.get("/fails")
    async def fails() -> None:
        raise KeyError("x")

    return app


def check(world: Any, expected: str) -> None:
    server = world.one("SERVER")
    assert server.instrumentation_scope.name == expected
    assert server.name == "GET /items/{item}"
    assert (f"{server.context.trace_id:032x}", f"{server.parent.span_id:016x}") == (TRACE, PARENT)
    assert server.attributes["http.route"] == "/items/{item}"
    (point,) = world.points("http.server.request.duration")
    assert point.attributes["http.route"] == "/items/{item}"


@pytest.mark.parametrize("first", ["ours", "theirs"])
async def test_instrument_app_and_add_middleware_in_any_order(
    world: Any, contrib: Callable[[str, str], Any], first: str
) -> None:
    """Theirs goes around the whole stack, whenever it is called."""
    app, instrumentor = application(), contrib("fastapi", "FastAPIInstrumentor")
    if first == "ours":
        app.add_middleware(ContextMiddleware, **world.ours)
    instrumentor.instrument_app(app, **world.theirs)
    if first == "theirs":
        app.add_middleware(ContextMiddleware, **world.ours)
    try:
        await world.request(app)
    finally:
        instrumentor.uninstrument_app(app)
    check(world, THEIRS)


async def test_instrument_app_inside_of_wrap(world: Any, contrib: Callable[[str, str], Any]) -> None:
    app, instrumentor = application(), contrib("fastapi", "FastAPIInstrumentor")
    instrumentor.instrument_app(app, **world.theirs)
    try:
        await world.request(wrap(app, **world.ours))
    finally:
        instrumentor.uninstrument_app(app)
    check(world, OURS)


async def test_the_global_instrumentor_with_a_middleware_that_was_added(
    world: Any, instrumented: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with instrumented("fastapi", "FastAPIInstrumentor"), caplog.at_level(logging.WARNING, "otelctx"):
        app = application()
        app.add_middleware(ContextMiddleware, **world.ours)
        await world.request(app)
        told = [r.getMessage() for r in caplog.records]
    check(world, THEIRS)
    assert ["opentelemetry-instrumentation-fastapi is active" in message for message in told] == [True]


async def test_the_global_instrumentor_inside_of_wrap(world: Any, instrumented: Any) -> None:
    with instrumented("fastapi", "FastAPIInstrumentor"):
        await world.request(wrap(application(), **world.ours))
    check(world, OURS)


@pytest.mark.parametrize("where", ["added", "wrapped"])
async def test_fastapis_native_tracing_and_contribs_together(world: Any, instrumented: Any, where: str) -> None:
    """All three are there, and one has the span; a second request has one as well."""
    with instrumented("fastapi", "FastAPIInstrumentor"):
        app: Any = application()
        if where == "added":
            app.add_middleware(ContextMiddleware, **world.ours)
        else:
            app = wrap(app, **world.ours)
        await world.request(app)
        await world.request(app)
    by = [s.instrumentation_scope.name for s in world.spans("SERVER")]
    assert by == [OURS if where == "wrapped" else THEIRS] * 2


@pytest.mark.parametrize("where", ["added", "wrapped"])
async def test_an_exception_of_the_application_is_recorded_on_the_one_span(
    world: Any, instrumented: Any, where: str
) -> None:
    with instrumented("fastapi", "FastAPIInstrumentor"):
        app: Any = application()
        if where == "added":
            app.add_middleware(ContextMiddleware, **world.ours)
        else:
            app = wrap(app, **world.ours)
        with pytest.raises(KeyError):
            await world.request(app, "/fails")
    server = world.one("SERVER")
    assert server.status.status_code.name == "ERROR"
    assert [event.attributes["exception.type"] for event in server.events] == ["KeyError"]


@pytest.mark.parametrize("where", ["added", "wrapped"])
async def test_contribs_starlette_instrumentor(world: Any, instrumented: Any, where: str) -> None:
    async def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    with instrumented("starlette", "StarletteInstrumentor"):
        import starlette.applications as current

        app: Any = current.Starlette(routes=[Route("/items/{item}", page)])
        assert isinstance(app, Starlette)
        if where == "added":
            app.add_middleware(ContextMiddleware, **world.ours)
        else:
            app = wrap(app, **world.ours)
        await world.request(app)
    assert world.one("SERVER").instrumentation_scope.name in (OURS, "opentelemetry.instrumentation.starlette")
    assert world.one("SERVER").attributes["http.route"] == "/items/{item}"
