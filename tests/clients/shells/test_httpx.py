"""What only httpx and httpx2 have: transports, mounts, mocks, applications in the same process."""

from __future__ import annotations

import contextvars
import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from opentelemetry import context as otel_context

from otelctx.clients.dispatch import instrument
from otelctx.context.current import ContextKey
from otelctx.context.scope import Scope
from otelctx.exchange.node import Node

TIER = ContextKey("clients.httpx.tier", str, visibility="public")

both = pytest.mark.parametrize("driver", ["httpx", "httpx-async", "httpx2", "httpx2-async"], indirect=True)
asynchronous = pytest.mark.parametrize("driver", ["httpx-async", "httpx2-async"], indirect=True)


@both
def test_the_same_object_comes_back_and_twice_is_once(driver: Any, node: Callable[..., Node]) -> None:
    mounts = {"http://a": None, "http://b": driver.client(node())._transport._inner}
    cls = driver.library.AsyncClient if driver.asynchronous else driver.library.Client
    client = cls(mounts=mounts, trust_env=False)
    inner = client._transport
    assert instrument(client, node=node()) is client
    wrapped = client._transport
    assert wrapped is not inner
    assert wrapped._inner is inner
    assert [None if t is None else type(t).__name__ for t in client._mounts.values()] == [None, type(wrapped).__name__]
    base = driver.library.AsyncBaseTransport if driver.asynchronous else driver.library.BaseTransport
    assert isinstance(wrapped, base)
    instrument(client, node=node())
    assert client._transport is wrapped
    driver.run(client.aclose()) if driver.asynchronous else client.close()


@both
def test_what_the_client_was_set_up_with_is_still_there(driver: Any, node: Callable[..., Node]) -> None:
    host = "proxy.internal"
    client = driver.client(node(), http2=True, proxy=f"http://{host}:3128")
    assert client._transport._pool is client._transport._inner._pool
    assert any("proxy" in str(vars(t._inner._pool)) for t in client._mounts.values())
    with pytest.raises(AttributeError):
        _ = client._transport.no_such_thing


@both
def test_entering_and_leaving_a_client_reaches_its_transports(driver: Any, node: Callable[..., Node]) -> None:
    called: list[str] = []
    base = driver.library.AsyncBaseTransport if driver.asynchronous else driver.library.BaseTransport

    class Noting(base):  # type: ignore[misc]
        def __enter__(self) -> Any:
            called.append("enter")
            return self

        def __exit__(self, *args: Any) -> None:
            called.append("exit")

        async def __aenter__(self) -> Any:
            return self.__enter__()

        async def __aexit__(self, *args: Any) -> None:
            self.__exit__()

        def close(self) -> None:
            called.append("close")

        async def aclose(self) -> None:
            self.close()

    client = driver.client(node(), transport=Noting())
    closed = driver.client(node(), transport=Noting())

    async def enter() -> None:
        async with client:
            pass
        await closed.aclose()

    if driver.asynchronous:
        driver.run(enter())
    else:
        with client:
            pass
        closed.close()
    assert called == ["enter", "exit", "close"]


class _Rerouted:
    """A transport to somewhere else, as a proxy would be."""

    def __init__(self, inner: Any, url: str) -> None:
        self._inner = inner
        self._url = url

    def handle_request(self, request: Any) -> Any:
        request.url = type(request.url)(self._url)
        return self._inner.handle_request(request)

    async def handle_async_request(self, request: Any) -> Any:
        request.url = type(request.url)(self._url)
        return await self._inner.handle_async_request(request)

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __enter__(self) -> Any:
        return self

    __exit__ = __aexit__ = lambda *args: None


@both
def test_a_redirect_to_another_origin_under_mounts_takes_no_frame_along(
    driver: Any, serve: Callable[..., Any], node: Callable[..., Node], chat: Scope, seen: Any
) -> None:
    """The redirected request is made from the headers of the first: a frame written into those would go with it."""
    TIER.set("gold")
    first, other = serve(), serve()

    def handler(request: Any) -> None:
        request.status = 307
        request.response_headers.append((b"location", b"http://elsewhere.example.com/"))

    first.handler = handler
    inner = driver.library.AsyncHTTPTransport() if driver.asynchronous else driver.library.HTTPTransport()
    mounts = {"http://elsewhere.example.com": _Rerouted(inner, other.url)}
    client = driver.client(node(), mounts=mounts)
    response = driver.post(client, first.url, content=b"x", follow=True)
    assert response.status == 200
    assert first.seen[0].values("otelctx") != []
    assert [name for name, _ in other.seen[0].headers if name.startswith(b"otelctx")] == []
    assert other.seen[0].values("baggage") == []
    assert len(other.seen[0].values("traceparent")) == 1
    one, two = seen.spans()
    assert two.attributes["http.request.resend_count"] == 1
    assert two.attributes["server.address"] == "elsewhere.example.com"
    assert one.context.span_id != two.context.span_id


@both
def test_the_callers_request_is_left_alone(driver: Any, worker: Any, node: Callable[..., Node], chat: Scope) -> None:
    client = driver.client(node())
    shared: dict[str, Any] = {}
    request = client.build_request("POST", worker.url, content=b"x", extensions=shared)
    before = list(request.headers.raw)
    sent = client.send(request)
    response = driver.run(sent) if driver.asynchronous else sent
    assert request.headers.raw == before
    assert response.request is request
    assert shared == {}


@asynchronous
def test_a_coroutine_that_is_thrown_away_leaves_no_trouble(
    driver: Any, node: Callable[..., Node], seen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is closed in another context than it ran in: there is nothing to detach, and nothing to complain of."""

    class Never(driver.library.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            class Forever:
                def __await__(self) -> Any:
                    yield

            await Forever()

    if (driver.library.__name__, driver.library.__version__) < ("httpx", "0.28"):
        pytest.skip("httpx before 0.28 itself asks which loop this is, and there is none any more")
    client = driver.client(node(), transport=Never())
    coroutine = client.post("http://localhost/")
    coroutine.send(None)
    contextvars.Context().run(coroutine.close)
    otel_context.attach(otel_context.Context())
    assert seen.span().status.is_unset
    assert len(seen.durations()) == 1
    assert [r for r in caplog.records if r.name.startswith("opentelemetry")] == []


@both
def test_a_response_that_came_whole_ends_at_once(driver: Any, node: Callable[..., Node], seen: Any) -> None:
    """Nothing reads or closes it a second time."""
    mock = driver.library.MockTransport(lambda request: driver.library.Response(200, json={"a": 1}))
    response = driver.post(driver.client(node(), transport=mock), "http://localhost/")
    assert json.loads(response.content) == {"a": 1}
    assert len(seen.spans()) == len(seen.durations()) == 1


@asynchronous
@pytest.mark.parametrize("contrib", [False, True])
def test_an_app_in_this_process_may_call_on(
    driver: Any, node: Callable[..., Node], seen: Any, contrib: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of another instrumentation on the way in is no reason for ours on the way on."""
    if contrib:
        monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.httpx", ModuleType("contrib"))
    else:
        monkeypatch.delitem(sys.modules, "opentelemetry.instrumentation.httpx", raising=False)
    inner = driver.client(
        node(), transport=driver.library.MockTransport(lambda request: driver.library.Response(200, content=b"in"))
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = (await inner.post("http://inner/")).content
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    outer = driver.client(node(), transport=driver.library.ASGITransport(app))
    assert driver.post(outer, "http://outer/").content == b"in"
    called, caller = seen.spans()
    assert called.parent.span_id == caller.context.span_id


@both
def test_without_contrib_nobody_is_suppressed(
    driver: Any, node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app in this process behind an ASGI transport may be instrumented by whatever it likes."""
    key = otel_context._SUPPRESS_HTTP_INSTRUMENTATION_KEY
    asked: list[object] = []

    def answer(request: Any) -> Any:
        asked.append(otel_context.get_value(key))
        return driver.library.Response(200)

    client = driver.client(node(), transport=driver.library.MockTransport(answer))
    monkeypatch.delitem(sys.modules, "opentelemetry.instrumentation.httpx", raising=False)
    driver.post(client, "http://localhost/")
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.httpx", ModuleType("contrib"))
    driver.post(client, "http://localhost/")
    assert asked == [None, True]
