"""Browsers: CORS stays what the application has said, and nothing of ours is shown to scripts of another origin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.clients.dispatch import instrument
from otelctx.context.current import ContextKey, current_scope, session
from otelctx.exchange.node import Node
from otelctx.settings import Settings

pytestmark = pytest.mark.e2e
KEYS = "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
TIER = ContextKey("network.tier", str, visibility="public")
ORIGIN = {"Origin": "https://app.example.com"}
PREFLIGHT = {**ORIGIN, "Access-Control-Request-Method": "POST"}


async def answer(request: Any) -> JSONResponse:
    scope = current_scope()
    return JSONResponse({"source": scope.source if scope else "none"})


def application(order: str, **cors: Any) -> Any:
    """CORS inside or outside of ours, or alone."""
    theirs = Middleware(CORSMiddleware, allow_origins=["https://app.example.com"], allow_methods=["POST"], **cors)
    ours = Middleware(ContextMiddleware, node=Node(Settings(keys=KEYS)))
    stack = {"inside": [ours, theirs], "outside": [theirs, ours], "alone": [theirs]}[order]
    return Starlette(routes=[Route("/", answer, methods=["GET", "POST"])], middleware=stack)


@pytest.fixture
def ask(serve: Callable[..., Any]) -> Callable[..., Any]:
    def ask(order: str, method: str, headers: dict[str, str], signed: bool = False, **cors: Any) -> httpx.Response:
        with serve(application(order, **cors)) as port, httpx.Client(trust_env=False, timeout=60) as client:
            if signed:
                instrument(client, node=Node(Settings(keys=KEYS)))
            with session("chat-1"), TIER.bound("gold"):
                return client.request(method, f"http://127.0.0.1:{port}/", headers=headers)

    return ask


def visible(response: httpx.Response) -> tuple[int, dict[str, str], bytes]:
    """What a response is, apart from its ack and the time."""
    headers = {name: value for name, value in response.headers.items() if name not in ("date", "otelctx-ack")}
    return response.status_code, headers, response.content


CORS: dict[str, dict[str, Any]] = {
    "plain": {},
    "exposing": {"expose_headers": ["X-Id"], "allow_headers": ["X-Id"], "allow_credentials": True},
    "everything": {"allow_headers": ["*"]},
}


@pytest.mark.parametrize("order", ["inside", "outside"])
@pytest.mark.parametrize("cors", list(CORS))
def test_a_preflight_is_answered_as_without_us(order: str, cors: str, ask: Callable[..., Any]) -> None:
    for wanted in ("x-id", "otelctx"):
        headers = {**PREFLIGHT, "Access-Control-Request-Headers": wanted}
        with_us, without = ask(order, "OPTIONS", headers, **CORS[cors]), ask("alone", "OPTIONS", headers, **CORS[cors])
        assert visible(with_us) == visible(without)
        assert "otelctx-ack" not in with_us.headers
        assert ("otelctx" in with_us.headers.get("access-control-allow-headers", "")) is (
            (wanted, cors) == ("otelctx", "everything")
        ), "only where the application allows whatever is asked for"


@pytest.mark.parametrize("order", ["inside", "outside"])
@pytest.mark.parametrize("cors", list(CORS))
def test_a_response_to_a_browser_is_as_without_us(order: str, cors: str, ask: Callable[..., Any]) -> None:
    response = ask(order, "POST", ORIGIN, **CORS[cors])
    assert "otelctx-ack" not in response.headers
    assert response.json() == {"source": "none"}
    alone = ask("alone", "POST", ORIGIN, **CORS[cors])
    assert visible(response) == visible(alone)


@pytest.mark.parametrize("order", ["inside", "outside"])
def test_a_script_that_sends_a_frame_is_not_believed(order: str, ask: Callable[..., Any]) -> None:
    """Where an application allows every header, a page may send one. It has no key, and learns nothing."""
    response = ask(order, "POST", {**ORIGIN, "otelctx": ":CgQIAxAB:"}, allow_headers=["*"])
    assert (response.json(), response.headers.get("otelctx-ack")) == ({"source": "none"}, None)


@pytest.mark.parametrize("order", ["inside", "outside"])
@pytest.mark.parametrize("cors", list(CORS))
def test_an_ack_is_never_exposed(order: str, cors: str, ask: Callable[..., Any]) -> None:
    """A service that passes a browser's Origin on gets its ack. Scripts read only what is listed, and it is not."""
    response = ask(order, "POST", ORIGIN, signed=True, **CORS[cors])
    assert response.json() == {"source": "frame"}
    assert "otelctx-ack" in response.headers
    assert "otelctx" not in response.headers.get("access-control-expose-headers", "").lower()
