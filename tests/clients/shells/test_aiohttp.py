"""What only aiohttp has: middlewares, trace configs, connectors, its own repetitions, WebSockets."""

from __future__ import annotations

import asyncio
import io
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from time import time
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.sdk.trace import SpanProcessor

from otelctx.clients.dispatch import instrument
from otelctx.context.current import USAGE_OUTPUT, ContextKey
from otelctx.context.scope import Scope
from otelctx.errors import ConfigError
from otelctx.exchange.node import Node
from otelctx.exchange.server import open as open_exchange

TIER = ContextKey("clients.aiohttp.tier", str)
Make = Callable[..., aiohttp.ClientSession]


@pytest.fixture
async def make(node: Callable[..., Node], seen: Any) -> AsyncIterator[Make]:
    made: list[aiohttp.ClientSession] = []

    def start(**options: Any) -> aiohttp.ClientSession:
        made.append(aiohttp.ClientSession(**options))
        return instrument(made[-1], node=node(), tracer_provider=seen.tracers, meter_provider=seen.meters)

    yield start
    for session in made:
        await session.close()


async def post(session: aiohttp.ClientSession, url: str, **options: Any) -> tuple[int, bytes]:
    async with session.post(url, **options) as response:
        return response.status, await response.read()


@pytest.fixture
async def site(node: Callable[..., Node]) -> AsyncIterator[Callable[..., Any]]:
    """Servers of aiohttp's own, which note the frames that come."""
    runners: list[web.ServerRunner] = []

    async def start(handler: Any, path: Path | None = None) -> str:
        runner = web.ServerRunner(web.Server(handler))
        runners.append(runner)
        await runner.setup()
        if path is not None:
            await web.UnixSite(runner, str(path)).start()
            return "http://worker/"
        place = web.TCPSite(runner, "127.0.0.1", 0)
        await place.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/"

    yield start
    for runner in runners:
        await runner.cleanup()


def kind(node: Node, request: web.BaseRequest) -> str | None:
    lines = [value for name, value in request.raw_headers if name.lower() == b"otelctx"]
    exchange = open_exchange(node, lines=lines, baggage=None, client="127.0.0.1", forwarded=None, now=time())
    try:
        return exchange.kind if exchange.outcome == "accepted" else None
    finally:
        exchange.close()


# the session


async def test_the_same_object_comes_back_and_twice_is_once(
    make: Make, worker: Any, node: Callable[..., Node], seen: Any
) -> None:
    session = make()
    assert type(session) is aiohttp.ClientSession
    assert instrument(session, node=node()) is session
    await post(session, worker.url)
    assert len(seen.spans()) == 1


async def test_a_session_that_is_dropped_goes_without_waiting_for_a_collector(node: Callable[..., Node]) -> None:
    session = instrument(aiohttp.ClientSession(), node=node())
    await session.close()
    gone = weakref.ref(session)
    del session
    assert gone() is None


async def test_an_aiohttp_without_middlewares_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(aiohttp, "ClientMiddlewareType")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ConfigError, match=r"aiohttp>=3\.12"):
            instrument(session)


async def test_middlewares_of_the_session_and_of_one_request_stay(
    make: Make, worker: Any, chat: Scope, seen: Any
) -> None:
    called: list[str] = []

    def noting(name: str) -> Any:
        async def middleware(request: aiohttp.ClientRequest, handler: Any) -> aiohttp.ClientResponse:
            called.append(name)
            request.headers["X-From"] = name
            response: aiohttp.ClientResponse = await handler(request)
            assert "otelctx" not in request.headers
            return response

        return middleware

    session = make(middlewares=(noting("one"), noting("two")))
    await post(session, worker.url)
    await post(session, worker.url, middlewares=(noting("three"),))
    await post(session, worker.url, middlewares=())
    assert called == ["one", "two", "three"]
    assert worker.kinds() == ["full"] * 3
    assert [request.values("x-from") for request in worker.seen] == [["two"], ["three"], []]
    assert len(seen.spans()) == 3


async def test_a_middleware_that_sends_again_makes_another_attempt(
    make: Make, worker: Any, chat: Scope, seen: Any
) -> None:
    async def again(request: aiohttp.ClientRequest, handler: Any) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await handler(request)
        if response.status == 503:
            response.release()
            response = await handler(request)
        return response

    session = make(middlewares=(again,))
    for _ in range(3):
        await post(session, worker.url)
    worker.handler = lambda request: setattr(request, "status", 503 if len(worker.seen) == 4 else 200)
    assert await post(session, worker.url, data=b"x", headers={"Baggage": "own=1"}) == (200, b"ok")
    assert worker.kinds()[3:] == ["ref", "full"]
    assert [request.values("baggage") for request in worker.seen[3:]] == [["own=1"]] * 2
    assert [len(request.values("traceparent")) for request in worker.seen] == [1] * 5
    assert seen.spans()[-1].attributes["http.request.resend_count"] == 1


async def test_a_connection_that_was_kept_too_long_is_another_attempt(
    make: Make, site: Any, node: Callable[..., Node], chat: Scope, seen: Any
) -> None:
    """aiohttp sends an idempotent request again when a server has closed a kept connection meanwhile."""
    receiver, kinds = node(), []

    async def handler(request: web.BaseRequest) -> web.Response:
        kinds.append(kind(receiver, request))
        if len(kinds) == 2:
            assert request.transport is not None
            request.transport.close()
        return web.Response(text="ok")

    url = await site(handler)
    session = make()
    for _ in range(2):
        async with session.get(url) as response:
            assert await response.text() == "ok"
    assert kinds == ["full"] * 3
    first, lost, repeated = seen.spans()
    assert lost.attributes["error.type"] == "aiohttp.client_exceptions.ServerDisconnectedError"
    assert "http.request.resend_count" not in first.attributes
    assert repeated.attributes["http.request.resend_count"] == 1


async def test_trace_configs_are_called_as_before(make: Make, worker: Any, chat: Scope) -> None:
    called: list[str] = []

    def noting(name: str) -> Any:
        async def note(*args: Any) -> None:
            called.append(name)

        return note

    config = aiohttp.TraceConfig()
    config.on_request_start.append(noting("start"))
    config.on_request_end.append(noting("end"))
    await post(make(trace_configs=[config]), worker.url)
    assert called == ["start", "end"]


async def test_a_trace_config_of_contribs_makes_no_second_span(make: Make, worker: Any, seen: Any, chat: Scope) -> None:
    module = "opentelemetry.instrumentation.aiohttp_client"
    contrib = pytest.importorskip(module, reason=f"no contrib instrumentation {module}")
    config = contrib.create_trace_config(tracer_provider=seen.tracers)
    await post(make(trace_configs=[config]), worker.url)
    assert seen.span().instrumentation_scope.name == "otelctx"
    assert len(worker.seen[0].values("traceparent")) == 1


async def test_tasks_may_share_it_and_each_has_its_own_scope(make: Make, worker: Any, chat: Scope) -> None:
    worker.handler = lambda request: request.scope.record(USAGE_OUTPUT.spec, 1)
    session = make()

    async def ask(number: int) -> None:
        with TIER.bound(str(number)):
            await post(session, worker.url, data=str(number).encode())

    await asyncio.gather(*[ask(number) for number in range(32)])
    assert USAGE_OUTPUT.get() == 32
    assert all(r.body.decode() == r.scope.state["clients.aiohttp.tier"] for r in worker.seen)


async def test_a_base_url_cookies_and_raise_for_status_work_as_before(make: Make, worker: Any, chat: Scope) -> None:
    def handler(request: Any) -> None:
        request.response_headers.append((b"set-cookie", b"a=1"))
        request.status = 404 if request.path == "/missing" else 200

    worker.handler = handler
    jar = aiohttp.CookieJar(unsafe=True)
    session = make(base_url=worker.url + "/", cookie_jar=jar, raise_for_status=True)
    await post(session, "one")
    await post(session, "two")
    assert worker.seen[1].values("cookie") == ["a=1"]
    with pytest.raises(aiohttp.ClientResponseError, match="404"):
        await post(session, "missing")


# bodies


@pytest.mark.parametrize(
    ("body", "replayed"),
    [
        ({"data": b"abc"}, True),
        ({"data": "abc"}, True),
        ({"json": {"a": 1}}, True),
        ({"data": {"a": "1"}}, True),
        ({}, True),
        ({"data": b"abc", "expect100": True}, False),
        ({"data": lambda: io.BytesIO(b"abc")}, False),
        ({"data": lambda: aiohttp.FormData({"f": io.BytesIO(b"abc")})}, False),
    ],
    ids=["bytes", "text", "json", "form", "none", "expect", "file", "multipart"],
)
async def test_which_bodies_are_sent_again_after_a_restart(
    make: Make, worker: Any, node: Callable[..., Node], chat: Scope, body: dict[str, Any], replayed: bool
) -> None:
    session = make()
    for _ in range(3):
        await post(session, worker.url)
    if callable(body.get("data")):
        body = {"data": body["data"]()}
    worker.node = node()
    assert await post(session, worker.url, **body) == (200, b"ok")
    assert (worker.refused, worker.kinds()[-1]) == (int(replayed), "full")
    if body.get("data") == b"abc":
        assert worker.seen[-1].body == b"abc"


async def test_each_way_to_read_a_body_to_its_end_ends_the_span(make: Make, worker: Any, seen: Any) -> None:
    async def read(response: aiohttp.ClientResponse) -> None:
        await response.read()

    async def chunked(response: aiohttp.ClientResponse) -> None:
        _ = [chunk async for chunk in response.content.iter_chunked(2)]

    async def lines(response: aiohttp.ClientResponse) -> None:
        _ = [line async for line in response.content]

    async def chunks(response: aiohttp.ClientResponse) -> None:
        _ = [chunk async for chunk, _ in response.content.iter_chunks()]

    session = make()
    for way in (read, chunked, lines, chunks):
        worker.handler = lambda request: setattr(request, "chunks", [b"a\nb\n", b"c"])
        seen.exporter.clear()
        response = await session.post(worker.url)
        await way(response)
        assert len(seen.spans()) == 1
        response.close()
        assert len(seen.spans()) == 1


async def test_cancelling_a_body_is_no_error(make: Make, worker: Any, seen: Any) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.sleep(0.2)

    worker.handler = lambda request: setattr(request, "chunks", endless())
    session = make()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await post(session, worker.url)
    assert seen.span().status.is_unset
    assert ["error.type" in d for d in seen.durations()] == [False]


async def test_a_response_that_is_finalised_is_ended_in_another_thread(make: Make, worker: Any, seen: Any) -> None:
    """A finaliser may run where a lock of the SDK is held."""
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    class Noting(SpanProcessor):
        def on_end(self, span: Any) -> None:
            name = threading.current_thread().name
            ended.get_loop().call_soon_threadsafe(ended.set_result, name)

    seen.tracers.add_span_processor(Noting())
    gate = threading.Event()

    async def broken() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.to_thread(gate.wait, 60)
        raise RuntimeError("the server falls over")

    worker.handler = lambda request: setattr(request, "chunks", broken())
    response = await make().post(worker.url)
    del response  # aiohttp itself holds it until the connection is lost
    gate.set()
    assert await asyncio.wait_for(ended, 60) == "otelctx-abandoned"
    assert seen.span().attributes["error.type"] == "aiohttp.client_exceptions.ClientPayloadError"


async def test_header_values_of_any_kind_arrive_as_they_would(make: Make, worker: Any, chat: Scope) -> None:
    headers = [("X-Twice", "1"), ("X-Twice", "é")]
    await post(make(headers={"User-Agent": "own"}), worker.url, headers=headers)
    (request,) = worker.seen
    assert [request.values(name) for name in ("x-twice", "user-agent")] == [["1", "Ã©"], ["own"]]


# other ways to a server


async def test_a_unix_socket_is_an_origin_by_the_name_in_the_url(
    make: Make, site: Any, node: Callable[..., Node], chat: Scope, seen: Any, tmp_path: Path
) -> None:
    receiver, kinds = node(), []

    async def handler(request: web.BaseRequest) -> web.Response:
        kinds.append((kind(receiver, request), "traceparent" in request.headers))
        return web.Response()

    url = await site(handler, tmp_path / "s")
    session = make(connector=aiohttp.UnixConnector(str(tmp_path / "s")))
    await post(session, url)
    await post(session, "http://api.example.com/")
    assert kinds == [("full", True), (None, True)]
    assert [span.attributes["server.address"] for span in seen.spans()] == ["worker", "api.example.com"]


async def test_a_websocket_handshake_takes_a_whole_frame(
    make: Make, site: Any, node: Callable[..., Node], chat: Scope, seen: Any
) -> None:
    receiver, kinds = node(), []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        kinds.append(kind(receiver, request))
        if "upgrade" not in request.headers:
            return web.Response()
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    url = await site(handler)
    session = make()
    for _ in range(2):
        async with session.ws_connect(url) as socket:
            await socket.send_str("hello")
            assert (await socket.receive()).data == "hello"
            # Over with the head: what follows is no HTTP.
            assert seen.spans()[-1].attributes["http.response.status_code"] == 101
    assert kinds == ["full", "full"]
    assert len(seen.spans()) == len(seen.durations()) == 2


async def test_a_refused_websocket_handshake_ends_too(make: Make, worker: Any, chat: Scope, seen: Any) -> None:
    worker.handler = lambda request: setattr(request, "status", 403)
    session = make()
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await session.ws_connect(worker.url)
    assert (seen.span().attributes["error.type"], len(worker.seen)) == ("403", 1)
