"""One SERVER span for a request, whichever other instrumentation is inside or around."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import httpx
import pytest
from opentelemetry import baggage, trace
from opentelemetry.trace import SpanKind, StatusCode
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from otelctx.asgi.middleware import ContextMiddleware, wrap
from otelctx.asgi.others import other_instrumentor
from otelctx.context.current import ContextKey, session

PLAN = ContextKey("beside.plan", str, visibility="public")
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
Contrib = Callable[[str, str], Any]


class App:
    """A Starlette application; what its endpoint sees."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.client: Any = None
        self.seen: dict[str, Any] = {}
        self.asgi = Starlette(
            routes=[
                Route("/items/{item}", self.item),
                Route("/fails", self.fails),
                WebSocketRoute("/items/{item}", self.socket),
            ]
        )

    def look(self) -> None:
        self.seen = dict(baggage.get_all())
        with self.world.tracers.get_tracer("app").start_as_current_span("work"):
            pass

    async def item(self, request: Request) -> PlainTextResponse:
        self.look()
        if self.client is not None:
            await self.client.get("http://upstream.example/x")
        return PlainTextResponse("ok")

    async def fails(self, request: Request) -> PlainTextResponse:
        raise KeyError("x")

    async def socket(self, socket: WebSocket) -> None:
        await socket.accept()
        self.look()
        await socket.close()


def ids(span: Any) -> tuple[str, str]:
    return f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}" if span.parent else ""


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_contribs_middleware_inside_steps_aside(world: Any, contrib: Contrib, kind: str) -> None:
    app = App(world)
    theirs = contrib("asgi", "OpenTelemetryMiddleware")(app.asgi, **world.theirs)
    await world.request(wrap(theirs, **world.ours), kind=kind)
    server = world.one("SERVER")
    assert server.instrumentation_scope.name == "otelctx"
    assert server.name == "GET /items/{item}"
    assert ids(server) == (TRACE, PARENT)
    assert {by for _, by in world.by()} == {"otelctx", "app"}, "and no span for each receive and send"
    assert app.seen == {"who": "them"}
    for name in ("http.server.duration", "http.server.request.size"):
        assert world.points(name) == [], "nothing is measured twice"
    assert sum(p.count for p in world.points("http.server.request.duration")) == (kind == "http")


async def test_inside_of_ours_the_clients_of_the_application_are_traced_by_contrib_all_the_same(
    world: Any, contrib: Contrib
) -> None:
    """Its middleware is kept out without the key that would keep its clients out as well."""
    app = App(world)
    transport = contrib("httpx", "AsyncOpenTelemetryTransport")(
        httpx.MockTransport(lambda request: httpx.Response(200)), **world.theirs
    )
    theirs = contrib("asgi", "OpenTelemetryMiddleware")(app.asgi, **world.theirs)
    async with httpx.AsyncClient(transport=transport) as app.client:
        await world.request(wrap(theirs, **world.ours))
    client, server = world.one("CLIENT"), world.one("SERVER")
    assert client.instrumentation_scope.name == "opentelemetry.instrumentation.httpx"
    assert client.parent.span_id == server.context.span_id


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_contribs_middleware_around_us_has_its_span_joined(world: Any, contrib: Contrib, kind: str) -> None:
    app = App(world)
    theirs = contrib("asgi", "OpenTelemetryMiddleware")(
        wrap(app.asgi, **world.ours), exclude_spans=["receive", "send"], **world.theirs
    )
    await world.request(theirs, kind=kind)
    server = world.one("SERVER")
    assert server.instrumentation_scope.name == "opentelemetry.instrumentation.asgi"
    assert ids(server) == (TRACE, PARENT)
    assert server.attributes["http.route"] == "/items/{item}", "what we know is on it"
    (work,) = [s for s in world.spans("INTERNAL") if s.name == "work"]
    assert work.parent.span_id == server.context.span_id
    assert world.by() == [("INTERNAL", "app"), ("SERVER", "asgi")]
    if kind == "http":
        (point,) = world.points("http.server.request.duration")
        assert point.attributes["http.route"] == "/items/{item}"


@pytest.mark.parametrize("name", ["beside.plan", "%62eside.plan"])
async def test_our_keys_do_not_stay_in_the_baggage_that_the_outer_one_has_read(
    world: Any, contrib: Contrib, name: str
) -> None:
    """The application's next call would pass them on, to anyone, in the name of whoever has sent them."""
    app = App(world)
    theirs = contrib("asgi", "OpenTelemetryMiddleware")(wrap(app.asgi, **world.ours), **world.theirs)
    await world.request(theirs, headers=[(b"host", b"x"), (b"baggage", f"who=them,{name}=free".encode())])
    assert app.seen == {"who": "them"}


async def test_a_path_that_the_outer_one_excludes_has_our_span_even_under_a_left_over_one(
    world: Any, contrib: Contrib
) -> None:
    """otel-python #4396: a server that runs a request in the Context of the one before."""
    app = App(world)
    theirs = contrib("asgi", "OpenTelemetryMiddleware")(
        wrap(app.asgi, **world.ours), excluded_urls="items", **world.theirs
    )
    tracer = world.tracers.get_tracer("opentelemetry.instrumentation.asgi")
    with trace.use_span(tracer.start_span("left over", kind=SpanKind.SERVER)):
        await asyncio.create_task(world.request(theirs), context=copy_context())
    server = world.one("SERVER")
    assert server.instrumentation_scope.name == "otelctx"
    assert ids(server) == (TRACE, PARENT)


@pytest.mark.parametrize("place", ["inside", "around"])
async def test_a_failure_is_on_the_one_span_once(world: Any, contrib: Contrib, place: str) -> None:
    middleware = contrib("asgi", "OpenTelemetryMiddleware")
    app = App(world)
    if place == "inside":
        stack = wrap(middleware(app.asgi, **world.theirs), **world.ours)
    else:
        stack = middleware(wrap(app.asgi, **world.ours), exclude_spans=["receive", "send"], **world.theirs)
    with pytest.raises(KeyError):
        await world.request(stack, "/fails")
    server = world.one("SERVER")
    assert server.status.status_code is StatusCode.ERROR
    # The other one ends its span with the last byte of the error page, before the exception comes out.
    assert server.attributes["error.type"] == {"inside": "KeyError", "around": "500"}[place]
    (point,) = world.points("http.server.request.duration")
    assert (point.attributes["http.response.status_code"], point.attributes["error.type"]) == (500, "KeyError")


async def test_what_is_loaded_after_the_middleware_was_made_is_arranged_with_before_the_first_request(
    world: Any, contrib: Contrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    middleware = contrib("asgi", "OpenTelemetryMiddleware")
    module = sys.modules["opentelemetry.instrumentation.asgi"]
    fresh = type("OpenTelemetryMiddleware", (middleware,), {})
    monkeypatch.setattr(middleware, "__call__", getattr(middleware.__call__, "__wrapped__", middleware.__call__))
    monkeypatch.delattr(middleware, "_otelctx_arranged", raising=False)
    monkeypatch.delitem(sys.modules, module.__name__)
    app = App(world)
    ours = wrap(app.asgi, **world.ours)
    stack = fresh(ours, **world.theirs)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(module, "OpenTelemetryMiddleware", fresh)
    await world.lifespan(stack)
    await world.request(stack)
    assert [by for kind, by in world.by() if kind == "SERVER"] == ["asgi"]


@pytest.mark.parametrize("place", ["inside", "around"])
async def test_starlettes_own_middleware(world: Any, place: str) -> None:
    module = pytest.importorskip("starlette.middleware.opentelemetry", reason="Starlette before 1.10 has none")
    native = module.OpenTelemetryMiddleware
    app = App(world)
    if place == "inside":
        stack: Any = wrap(native(app.asgi, tracer_provider=world.tracers), **world.ours)
    else:
        stack = native(wrap(app.asgi, **world.ours), tracer_provider=world.tracers)
    await world.request(stack)
    server = world.one("SERVER")
    assert server.instrumentation_scope.name == {"inside": "otelctx", "around": "starlette"}[place]
    assert (server.name, ids(server)) == ("GET /items/{item}", (TRACE, PARENT))


async def test_the_outer_one_of_ours_has_the_span_and_the_inner_one_passes_through(world: Any) -> None:
    app = App(world)
    app.asgi.add_middleware(ContextMiddleware, **world.ours)
    with session("elsewhere"):
        await world.request(wrap(wrap(app.asgi, **world.ours), **world.ours))
    assert world.by() == [("INTERNAL", "app"), ("SERVER", "otelctx")]


@pytest.mark.parametrize("inside", [True, False])
def test_another_instrumentation_is_told_of_when_the_middleware_is_made(
    world: Any, contrib: Contrib, caplog: pytest.LogCaptureFixture, inside: bool
) -> None:
    app: Any = App(world).asgi
    if inside:
        app = contrib("asgi", "OpenTelemetryMiddleware")(app, **world.theirs)
    with caplog.at_level(logging.WARNING, "otelctx"):
        wrap(app, **world.ours)
    assert [r.getMessage().partition(" ")[0] for r in caplog.records] == (
        ["opentelemetry.instrumentation.asgi"] if inside else []
    )
    assert other_instrumentor(None) is None
