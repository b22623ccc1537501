"""What is declared of servers and applications: the matrix's two axes, and what a cell can't do, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["APPS", "BOOM", "CANNOT", "MODES", "App", "Mode", "cannot", "cases"]

BOOM = "support.Boom"  # error.type of what handlers raise


@dataclass(frozen=True)
class Mode:
    """``process`` is a name of ``serve.SERVERS``; ``headers``: how many a request may have; ``close_code``: what the
    application is told whatever code the client closes a websocket with; ``body_after_head``: it sends one;
    ``leaves_open``: it does not end the stream of an application that has failed, and the client waits in vain.
    """

    process: str
    version: str
    headers: int = 400
    close_code: int | None = None
    body_after_head: bool = False
    leaves_open: bool = False


MODES = {
    "uvicorn-h11": Mode("uvicorn-h11", "1.1"),
    "uvicorn-httptools": Mode("uvicorn-httptools", "1.1"),
    "gunicorn": Mode("gunicorn", "1.1"),
    "hypercorn-1.1": Mode("hypercorn", "1.1", close_code=1006),
    "hypercorn-2": Mode("hypercorn", "2", close_code=1006, leaves_open=True),
    "granian-1.1": Mode("granian", "1.1", headers=90),
    "granian-2": Mode("granian", "2", body_after_head=True),
}


@dataclass(frozen=True)
class App:
    """``raises``: exceptions of a handler come out of the application; else they are known by the 500 alone. ``late``:
    what comes out in the middle of a response; ``late_ends``: the response is brought to a proper end all the same;
    ``late_after``: and what comes out does so after that. ``close_code``: how an exception closes a websocket, and
    does not come out. ``reads_first``: a body is read before anybody looks at the path. ``trailers``: they come
    through. ``ours``: the status of an error of ours, which has one of its own where we are inside of what answers
    exceptions.

    ``routes``: templates where they are not written as in ``apps/raw.py``; ``None`` for a path that has none, with a
    method before it for one that has none under that method.
    """

    module: str
    raises: bool = True
    late: str = BOOM
    late_ends: bool = False
    late_after: bool = False
    close_code: int | None = None
    reads_first: bool = False
    trailers: bool = True
    ours: int = 500
    routes: Mapping[str, str | None] = field(default_factory=dict)

    def route(self, path: str, method: str = "GET") -> str | None:
        return self.routes.get(f"{method} {path}", self.routes.get(path, path))


APPS = {
    "raw": App("raw", ours=503),
    "starlette": App("starlette"),
    "starlette-added": App("starlette", ours=503),
    "starlette-base-inside": App("starlette", late_ends=True, late_after=True, trailers=False, ours=503),
    "starlette-base-outside": App("starlette", late_ends=True, trailers=False, ours=503),
    "fastapi": App("fastapi", ours=503),
    "fastapi-wrapped": App("fastapi"),
    "litestar": App(
        "litestar",
        raises=False,
        late="litestar.exceptions.base_exceptions.LitestarException",
        close_code=4500,
        routes={"PROPFIND /items/{item_id}": None},
    ),
    "quart": App(
        "quart",
        raises=False,
        close_code=1000,
        routes={
            "/items/{item_id}": "/items/<item_id>",
            "/tenants/{tenant}/items/{item_id}": "/tenants/<tenant>/items/<item_id>",
            "/trailers": None,
            "/hints": None,
        },
    ),
    "django": App(
        "django",
        raises=False,
        reads_first=True,
        routes={
            "/items/{item_id}": "/items/<str:item_id>",
            "/tenants/{tenant}/items/{item_id}": "/tenants/<str:tenant>/items/<str:item_id>",
            "/trailers": None,
            "/hints": None,
        },
    ),
}

_WEBSOCKETS = (
    "ws_closed_by_the_client",
    "ws_closed_by_the_server",
    "ws_dropped",
    "ws_exception",
    "ws_refused",
    "ws_denied",
    "ws_session",
    "ws_not_found",
)

# (mode, application, case) → why; "*" is any.
CANNOT: dict[tuple[str, str, str], str] = {
    **{
        (mode, "*", case): f"the server offers no http.response.{extension}"
        for mode in MODES
        for case, extension in (("early_hints", "early_hint"), ("trailers", "trailers"))
        if mode != "hypercorn-2"
    },
    **{
        (mode, "raw", "file"): "the server offers neither pathsend nor zerocopysend; the application has no other way"
        for mode in MODES
        if not mode.startswith("granian")
    },
    **{("*", "django", case): "Django answers HTTP alone: to a websocket it raises ValueError" for case in _WEBSOCKETS},
    **{
        (mode, "*", "expect_continue"): "the server ignores Expect on HTTP/2: the client never gets its 100"
        for mode in ("hypercorn-2", "granian-2")
    },
    **{
        ("granian-1.1", "quart", case): "Granian takes a denial in one piece and Quart sends several: it becomes a 403"
        for case in ("ws_denied", "ws_not_found")
    },
    **{
        (
            "hypercorn-2",
            app,
            "left_without_reading",
        ): "Hypercorn does not release a send() that waits for the window of a "
        "stream that is reset, and BaseHTTPMiddleware waits for it for ever: the call does not end"
        for app in ("starlette-base-inside", "starlette-base-outside")
    },
    **{
        (mode, "*", "http_1_0"): "a client that speaks HTTP/2 speaks no HTTP/1.0"
        for mode, each in MODES.items()
        if each.version == "2"
    },
    **{
        ("granian-2", "*", case): "the server does not offer RFC 8441, so that there are no websockets on HTTP/2"
        for case in _WEBSOCKETS
    },
}


def cannot(mode: str, app: str, case: str) -> str | None:
    """Why ``case`` is not tried in this cell."""
    keys = ((m, a, case) for m in (mode, "*") for a in (app, "*"))
    return next((CANNOT[key] for key in keys if key in CANNOT), None)


def cases(mode: str, app: str, every: Iterable[str]) -> list[str]:
    """Those of ``every`` case that the cell can express."""
    return [case for case in every if cannot(mode, app, case) is None]
