"""A deadline over two hops of real servers: it shrinks at each of them, and only who is trusted sets one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import httpx
import pytest

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.clients.dispatch import instrument
from otelctx.context.current import current_scope, session
from otelctx.exchange.node import Node

HEADER = "otelctx-timeout-ms"


class Service:
    """Passes each request on to ``next``, if there is one. Keeps what is left, in seconds, and the headers it saw."""

    def __init__(self, node: Node, next: str | None = None) -> None:
        self.node = node
        self.next = next
        self.left: list[float | None] = []
        self.came: list[list[str]] = []
        self.passed: list[list[bytes]] = []
        self._wrapped = ContextMiddleware(self._app, node=node)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.came.append([value.decode() for name, value in scope["headers"] if name == HEADER.encode()])
        await self._wrapped(scope, receive, send)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        here = current_scope()
        assert here is not None
        self.left.append(None if here.deadline is None else here.deadline - monotonic())
        self.passed.append([name for name, _ in scope["headers"] if name.startswith(b"otelctx")])
        if self.next is not None:
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                await instrument(client, node=self.node).post(self.next)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def hops(node: Callable[..., Node], sockets: Callable[[], Any]) -> Iterator[tuple[Service, Service, str]]:
    back, behind = sockets()
    back.app = last = Service(node())
    front, url = sockets()
    front.app = first = Service(node(), behind)
    yield first, last, url
    back.app = front.app = None


@pytest.fixture
def post(node: Callable[..., Node]) -> Iterator[Callable[..., httpx.Response]]:
    with httpx.Client(trust_env=False, timeout=60) as client:
        yield instrument(client, node=node()).post


def test_it_shrinks_at_each_hop(hops: Any, post: Any) -> None:
    front, back, url = hops
    with session("chat-1", timeout=1000):
        for _ in range(5):  # FULL and REF alike
            assert post(url).text == "ok"
    for (first,), (second,) in zip(front.came, back.came, strict=True):
        assert 100_000 <= int(second) < int(first) < 1_000_000, "a test takes 900 seconds at most"
    assert all(0 < behind < ahead < 1000 for ahead, behind in zip(front.left, back.left, strict=True))
    assert front.passed == back.passed == [[]] * 5, "no application sees a header of ours"


def test_a_service_in_the_middle_may_only_shorten_it(hops: Any, post: Any) -> None:
    _, back, url = hops
    with session("chat-1", timeout=5000), session("chat-1", timeout=1000), session("chat-1", timeout=3000):
        post(url)
    assert 0 < back.left[0] < 1000


def test_one_that_has_passed_goes_on_as_passed(hops: Any, post: Any) -> None:
    front, back, url = hops
    with session("chat-1", timeout=1e-9):
        assert post(url).status_code == 200, "nothing is cancelled by it"
    assert front.came == back.came == [["0"]]
    assert back.left[0] <= 0


@pytest.mark.parametrize("value", ["100", "0", "-1", "soon", "1e9", "9" * 5000])
def test_a_stranger_sets_none(hops: Any, value: str) -> None:
    front, back, url = hops
    assert httpx.post(url, headers={HEADER: value}, trust_env=False, timeout=60).text == "ok"
    assert (front.came, front.left) == ([[value]], [None])
    assert (back.came, back.left) == ([[]], [None])


def test_what_the_caller_has_copied_from_elsewhere_is_replaced(hops: Any, post: Any) -> None:
    front, _, url = hops
    with session("chat-1", timeout=1000):
        post(url, headers={"OtelCtx-Timeout-MS": "99000000"})
    with session("chat-1"):
        post(url, headers={"OtelCtx-Timeout-MS": "99000000"})
    assert front.came[1] == []
    assert int(front.came[0][0]) < 1_000_000
