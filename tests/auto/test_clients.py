"""Clients and channels that know nothing of otelctx: instrumented as they are made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import aiohttp
import grpc
import httpx
import pytest
import requests
from grpc import aio
from opentelemetry.trace import SpanKind

from otelctx.context.current import session


def marks(client: Any) -> bool:
    """Whether it is instrumented."""
    kinds = [type(client), type(getattr(client, "_transport", None)), type(vars(client).get("_request"))]
    return any(c.__module__.startswith("otelctx.") for kind in kinds for c in kind.__mro__)


class Mine(httpx.Client):
    def __init__(self) -> None:
        super().__init__(base_url="http://example.org")


class Own(requests.Session):
    def __init__(self) -> None:
        super().__init__()
        self.mark = 1


KINDS: list[str] = []


class Plugin(requests.Session):
    """A kind of session that keeps a register of its kinds."""

    def __init_subclass__(cls, *, name: str) -> None:
        KINDS.append(name)


class Shop(Plugin, name="shop"):
    pass


async def made_aiohttp() -> Any:
    async with aiohttp.ClientSession() as made:
        return made


def httpx2() -> Any:
    return pytest.importorskip("httpx2", reason="httpx2 is not installed")


MAKERS = {
    "httpx.Client": httpx.Client,
    "httpx.AsyncClient": httpx.AsyncClient,
    "httpx2.Client": lambda: httpx2().Client(),
    "httpx2.AsyncClient": lambda: httpx2().AsyncClient(),
    "a subclass of httpx.Client": Mine,
    "requests.Session": requests.Session,
    "requests.session()": requests.session,
    "a subclass of requests.Session": Own,
    "one whose subclasses are registered": Shop,
    "aiohttp.ClientSession": lambda: asyncio.run(made_aiohttp()),
}


@pytest.mark.parametrize("name", list(MAKERS))
def test_a_client_is_instrumented_from_the_start_and_after_the_end_no_more(zero: Any, name: str) -> None:
    assert marks(MAKERS[name]())
    assert KINDS == ["shop"], "ours is no new kind"
    zero.patches.stop()
    assert not marks(MAKERS[name]())


def test_a_client_that_can_not_be_instrumented_works_as_before(
    zero: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(aiohttp, "ClientMiddlewareType")
    assert not marks(asyncio.run(made_aiohttp()))
    assert "aiohttp>=3.12" in caplog.text


def test_nor_is_a_client_broken_by_an_error_that_nobody_has_thought_of(
    zero: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("otelctx.auto.clients.instrument", Mock(side_effect=TypeError("a version of tomorrow")))
    with httpx.Client(trust_env=False) as client:
        assert not marks(client)
    assert caplog.messages == ["Client is not instrumented: a version of tomorrow"]


def echo(request: bytes, context: Any) -> bytes:
    return request


async def aecho(request: bytes, context: Any) -> bytes:
    return request


def handlers(function: Any) -> Any:
    return grpc.method_handlers_generic_handler("test.Echo", {"Say": grpc.unary_unary_rpc_method_handler(function)})


@pytest.fixture
def target(zero: Any) -> Iterator[str]:
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, (handlers(echo),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(0).wait()


def one_pair(zero: Any) -> None:
    client, server = zero.one("CLIENT"), zero.one("SERVER")
    assert server.parent.span_id == client.context.span_id
    assert client.attributes["session.id"] == "s-1"
    assert {client.instrumentation_scope.name, server.instrumentation_scope.name} == {"otelctx"}


def test_grpc_channels_and_servers(zero: Any, target: str) -> None:
    with grpc.insecure_channel(target) as channel, session("s-1"):
        assert channel.unary_unary("/test.Echo/Say")(b"x") == b"x"
    one_pair(zero)


async def test_aio_channels_and_servers(zero: Any) -> None:
    server = aio.server(interceptors=())
    server.add_generic_rpc_handlers((handlers(aecho),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with session("s-1"):
            assert await channel.unary_unary("/test.Echo/Say")(b"x") == b"x"
    await server.stop(0)
    one_pair(zero)


def test_interceptors_that_were_given_stay(zero: Any, target: str) -> None:
    seen: list[str] = []

    class Mine(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            seen.append(details.method)
            return continuation(details)

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, (handlers(echo),), interceptors=[Mine()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            channel.unary_unary("/test.Echo/Say")(b"x")
        server.stop(0).wait()
    assert seen == ["/test.Echo/Say"]
    assert len(zero.spans("SERVER")) == 1


def test_after_the_end_channels_are_plain(zero: Any, target: str) -> None:
    zero.patches.stop()
    with grpc.insecure_channel(target) as channel:
        channel.unary_unary("/test.Echo/Say")(b"x")
    assert [s.kind for s in zero.spans()] == [SpanKind.SERVER], "made before, it stays as it is"
