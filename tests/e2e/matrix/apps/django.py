"""Django's ASGI handler: wrapped from outside, its routes named by ``RouteMiddleware``, async and sync views.

The routes are in ``raw.py``'s docstring. Exceptions become responses inside of it, and a view is cancelled when its
client leaves. There are no websockets and no mounts: what is an ASGI application of its own stands beside it, and has
no route. Nor are there background tasks; what comes nearest is what is done when a response is closed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import django
import support
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import FileResponse, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import include, path
from django.views.decorators.http import require_http_methods

from otelctx.asgi.middleware import wrap

BESIDE: dict[str, Any] = {"/trailers": support.trailers, "/hints": support.hints}


class Last(HttpResponse):
    def close(self) -> None:
        super().close()
        support.work()


@require_http_methods(["GET", "HEAD"])
async def seen(request: Any, **names: str) -> HttpResponse:
    return JsonResponse(support.enter())


@require_http_methods(["GET"])
def sync_seen(request: Any, **names: str) -> HttpResponse:
    """In a thread, as Django runs functions that aren't coroutines."""
    return JsonResponse(support.enter())


async def stream(request: Any) -> StreamingHttpResponse:
    support.enter()
    return StreamingHttpResponse(support.pieces(), content_type="text/plain")


async def sse(request: Any) -> StreamingHttpResponse:
    support.enter()
    return StreamingHttpResponse(support.pieces(support.EVENTS), content_type="text/event-stream")


async def endless(request: Any) -> StreamingHttpResponse:
    support.enter()
    return StreamingHttpResponse(support.endless(), content_type="text/event-stream")


async def background(request: Any) -> HttpResponse:
    support.enter()
    return Last("done", content_type="text/plain")


async def outliving(request: Any) -> HttpResponse:
    support.enter()
    support.let_go()
    return HttpResponse("done")


async def overloaded(request: Any) -> None:
    support.enter()
    support.overloaded()


def boom(request: Any) -> HttpResponse:
    support.enter()
    raise support.Boom("before the response")


async def boom_late(request: Any) -> StreamingHttpResponse:
    support.enter()
    return StreamingHttpResponse(support.pieces(fail=True), content_type="text/plain")


async def slow(request: Any) -> HttpResponse:
    support.enter()
    await support.forever()
    return HttpResponse()


@require_http_methods(["POST"])
async def upload(request: Any) -> HttpResponse:
    support.enter()
    return JsonResponse({"size": len(request.body)})


async def file(request: Any) -> FileResponse:
    support.enter()
    return FileResponse(support.FILE.open("rb"))


urlpatterns = [
    path("items/<str:item_id>", seen),
    path("tenants/<str:tenant>/", include([path("items/<str:item_id>", sync_seen)])),
    path("health", seen),
    path("stream", stream),
    path("sse", sse),
    path("endless", endless),
    path("background", background),
    path("outliving", outliving),
    path("overloaded", overloaded),
    path("boom", boom),
    path("boom-late", boom_late),
    path("slow", slow),
    path("upload", upload),
    path("file", file),
]


def build() -> Any:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="no secret",
        ROOT_URLCONF=sys.modules[__name__],
        MIDDLEWARE=["otelctx.asgi.django.RouteMiddleware"],
        DATA_UPLOAD_MAX_MEMORY_SIZE=None,
        LOGGING_CONFIG=None,
    )
    django.setup()
    return get_asgi_application()


def beside() -> Callable[..., Any]:
    app = build()

    async def either(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":  # Django has none
            found = BESIDE.get(scope["path"].removeprefix(scope["root_path"]), app)
            await found(scope, receive, send)

    return either


VARIANTS: dict[str, Callable[[], Any]] = {"django": lambda: wrap(beside(), excluded="/health")}
