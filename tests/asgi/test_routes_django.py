"""Routes, scopes and threads under Django's ASGI handler, with ``RouteMiddleware``."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextvars import copy_context
from types import ModuleType
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, StreamingHttpResponse
from django.test import RequestFactory, override_settings
from django.urls import clear_url_caches, include, path, re_path
from django.views import View
from starlette.applications import Starlette
from starlette.routing import Mount

import otelctx
from otelctx.asgi.django import RouteMiddleware, template
from otelctx.context.current import ContextKey

TIER = ContextKey("asgi.django.tier", str)
MIDDLEWARE = "otelctx.asgi.django.RouteMiddleware"
seen: list[tuple[str | None, bool]] = []


async def item(request: Any, *args: Any, **kwargs: Any) -> HttpResponse:
    seen.append((TIER.get(), threading.current_thread() is threading.main_thread()))
    return HttpResponse("ok")


def sync_item(request: Any, **kwargs: Any) -> HttpResponse:
    seen.append((TIER.get(), threading.current_thread() is threading.main_thread()))
    TIER.set("from a thread")
    return HttpResponse("ok")


def boom(request: Any) -> HttpResponse:
    raise RuntimeError("boom")


class OnlyPost(View):
    async def post(self, request: Any, pk: int) -> HttpResponse:
        return HttpResponse("ok")


async def stream(request: Any) -> StreamingHttpResponse:
    async def body() -> Any:
        for n in range(3):
            await asyncio.sleep(0)
            seen.append((TIER.get(), True))
            yield f"{n}\n"

    return StreamingHttpResponse(body())


nested = [path("items/<slug:item>/", item), path("", item)]
urls = ModuleType("otelctx_test_urls")
urls.urlpatterns = [  # type: ignore[attr-defined]
    path("", item),
    path("users/<int:pk>/", item),
    path("sync/<int:pk>/", sync_item),
    path("boom/", boom),
    path("stream/", stream),
    path("posts/<int:pk>/", OnlyPost.as_view()),
    path("tenants/<str:tenant>/", include(nested)),
    re_path(r"^articles/(?P<year>[0-9]{4})/(?:page-(?P<page>\d+)/)?$", item),
    re_path(r"^old/", include([re_path(r"^(\w+)/x\.html$", item)])),
]


@pytest.fixture(scope="module", autouse=True)
def configured() -> Iterator[None]:
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="x", DEBUG_PROPAGATE_EXCEPTIONS=False)
        django.setup()
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[MIDDLEWARE]):
        clear_url_caches()
        yield
    clear_url_caches()


@pytest.fixture
def app() -> Any:
    seen.clear()
    return get_asgi_application()


async def ask(rig: Any, app: Any, method: str, path: str, **extra: Any) -> Any:
    """Django waits for a disconnect beside the view, so it must not come before the response."""
    pending = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if pending:
            return pending.pop()
        await asyncio.Event().wait()

    r = rig(app)
    response = await r.request(method, path, {"host": "x.test"}, receive=receive, **extra)
    return r, response


@pytest.mark.parametrize(
    ("method", "path", "status", "route"),
    [
        ("GET", "/", 200, "/"),
        ("GET", "/users/7/", 200, "/users/<int:pk>/"),
        ("HEAD", "/users/7/", 200, "/users/<int:pk>/"),
        ("OPTIONS", "/posts/7/", 200, "/posts/<int:pk>/"),
        ("GET", "/posts/7/", 405, "/posts/<int:pk>/"),
        ("GET", "/sync/7/", 200, "/sync/<int:pk>/"),
        ("GET", "/boom/", 500, "/boom/"),
        ("GET", "/tenants/acme/items/x/", 200, "/tenants/<str:tenant>/items/<slug:item>/"),
        ("GET", "/tenants/acme/", 200, "/tenants/<str:tenant>/"),
        ("GET", "/articles/2026/", 200, "/articles/<year>/page-<page>/?"),
        ("GET", "/old/acme/x.html", 200, "/old/<var>/x.html"),
        ("GET", "/nowhere/acme/", 404, None),
    ],
)
async def test_djangos_route_is_the_pattern_of_the_view(
    rig: Any, app: Any, method: str, path: str, status: int, route: str | None
) -> None:
    r, response = await ask(rig, app, method, path)
    assert response.status == status
    assert r.point().get("http.route") == route
    assert r.span.attributes.get("http.route") == route
    assert r.span.name == (f"{method} {route}" if route else method)


async def test_under_a_root_path_the_root_is_part_of_the_route(rig: Any, app: Any) -> None:
    r, response = await ask(rig, app, "GET", "/base/users/7/", root_path="/base")
    assert (response.status, r.point()["http.route"]) == (200, "/base/users/<int:pk>/")


async def test_mounted_under_a_parameter_its_name_is_in_the_route_and_never_its_value(rig: Any, app: Any) -> None:
    outer = Starlette(routes=[Mount("/t/{tenant}", app=app)])
    r, response = await ask(rig, outer, "GET", "/t/acme/users/7/")
    assert (response.status, r.point()["http.route"]) == (200, "/t/{tenant}/users/<int:pk>/")


async def test_without_the_middleware_there_is_no_route(rig: Any) -> None:
    with override_settings(MIDDLEWARE=[]):
        r, response = await ask(rig, get_asgi_application(), "GET", "/users/7/")
    assert (response.status, r.span.name) == (200, "GET")


async def test_the_middleware_costs_no_change_of_thread(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Django runs a view middleware that is a plain function in another thread when the handler is async."""
    threads: list[threading.Thread] = []
    monkeypatch.setattr("otelctx.asgi.django.name_route", lambda *_: threads.append(threading.current_thread()))
    for url in ("/users/7/", "/sync/7/"):
        await ask(rig, get_asgi_application(), "GET", url)
    assert threads == [threading.main_thread()] * 2


async def test_a_sync_view_sees_and_sets_the_scope_of_its_request(rig: Any, app: Any) -> None:
    """asgiref runs it in a thread of its own, with a copy of the request's contextvars."""
    after: list[str | None] = []

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        TIER.set("gold")
        await app(scope, receive, send)
        after.append(TIER.get())

    await ask(rig, outer, "GET", "/sync/7/")
    assert seen == [("gold", False)]
    assert after == ["from a thread"]


async def test_a_streamed_response_sees_the_scope_to_its_last_chunk(rig: Any, app: Any) -> None:
    async def outer(scope: Any, receive: Any, send: Any) -> None:
        TIER.set("gold")
        await app(scope, receive, send)

    r, response = await ask(rig, outer, "GET", "/stream/")
    assert response.body == b"0\n1\n2\n"
    assert seen == [("gold", True)] * 3
    assert r.span.name == "GET /stream/"


class SyncOnly:
    """As old middleware is: Django runs everything around it in threads."""

    async_capable = False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        return self.get_response(request)


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("path", ["/users/7/", "/sync/7/"])
async def test_beside_middleware_that_is_sync_only_the_route_is_named(
    rig: Any, outside: bool, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "SyncOnly", SyncOnly, raising=False)
    monkeypatch.setitem(sys.modules, urls.__name__, urls)
    old = "otelctx_test_urls.SyncOnly"  # Django imports it by its name
    with override_settings(MIDDLEWARE=[old, MIDDLEWARE] if outside else [MIDDLEWARE, old]):
        r, response = await ask(rig, get_asgi_application(), "GET", path)
    assert (response.status, r.span.name) == (200, f"GET {path.replace('7', '<int:pk>')}")


def test_under_wsgi_the_middleware_does_nothing() -> None:
    """There is no span of ours to be named, and no scope to be read."""
    environ = RequestFactory()._base_environ(PATH_INFO="/sync/7/", SERVER_NAME="x.test")
    started: list[str] = []
    # The view sets a key: outside a request that stays, and here it must not.
    body = copy_context().run(get_wsgi_application(), environ, lambda status, headers: started.append(status))
    assert (started, b"".join(body)) == (["200 OK"], b"ok")
    body.close()


async def test_a_client_that_leaves_in_its_own_request_is_marked_and_has_no_status(rig: Any, app: Any) -> None:
    """Django reads the whole body before anything else, and answers nobody when that fails."""
    pending = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"begin", "more_body": True}]

    async def receive() -> Any:
        return pending.pop()

    r = rig(app)
    await r.request("POST", "/users/7/", {"host": "x.test"}, receive=receive)
    assert r.span.attributes["otelctx.client.disconnected"] is True
    assert r.point().keys() == {"http.request.method", "url.scheme", "network.protocol.version"}


def test_a_sync_handler_names_its_routes_too(rig: Any) -> None:
    """Under WSGI or with a sync-only middleware inside, the middleware is called as a function."""
    answer = RouteMiddleware(lambda request: "the response")
    assert answer(object()) == "the response"
    assert not asyncio.iscoroutinefunction(answer.process_view)


def test_the_facade_wraps_it(app: Any) -> None:
    assert isinstance(otelctx.wrap(app), otelctx.ContextMiddleware)


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("", "/"),
        ("a/<uuid:x>/", "/a/<uuid:x>/"),
        ("/odd", "/odd"),
        (r"^$", "/"),
        (r"^a/(?P<x>(b|c)[()\])]+)/d$", "/a/<x>/d"),
        (r"^a\.b/(\d+)-(\w+)\Z", "/a.b/<var>-<var>"),
        (r"^(?i)a(?=b)/(?:v(?P<n>\d))?/$", "/a/v<n>?/"),
        (r"^a/\d+/$", r"/a/\d+/"),
        (r"^never closed/(?P<x>", "/never closed/<x>"),
        ("b/^c/(?P<x>.*)$", "/b/c/<x>"),
    ],
)
def test_a_regular_expression_becomes_readable(route: str, expected: str) -> None:
    assert template(route) == expected
