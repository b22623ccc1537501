"""Two parties that trust each other, and a wire between them that can be tampered with."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from otelctx.context.current import REGISTRY, session
from otelctx.context.scope import Scope
from otelctx.exchange import client, server
from otelctx.exchange.client import ClientExchange, Verdict
from otelctx.exchange.node import Node, set_default_node
from otelctx.exchange.server import ServerExchange
from otelctx.settings import Settings

SECRET = "1:" + base64.b64encode(bytes(range(32))).decode()
UNIX = 1_800_000_000.0


@dataclass
class Wire:
    """Sends requests of ``caller`` to ``callee`` at a clock that only moves when told."""

    caller: Node
    callee: Node
    now: float = 100.0
    kinds: list[str | None] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    runs: int = 0
    peer: str = "127.0.0.1"
    response_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    server: ServerExchange | None = None
    client: ClientExchange | None = None

    @property
    def unix(self) -> float:
        return UNIX + self.now

    def begin(self, *, method: str = "POST", path: str = "/v1", body: int | None = 10, **more: Any) -> ClientExchange:
        more = {"host": "localhost", "now": self.now, "unix": self.unix} | more
        return client.begin(self.caller, scheme="http", port=80, method=method, path=path, body=body, **more)

    def open(self, lines: list[bytes | str], **more: Any) -> ServerExchange:
        more = {"baggage": None, "client": self.peer, "forwarded": None, "now": self.unix} | more
        return server.open(self.callee, lines=lines, **more)

    def call(
        self,
        app: Callable[[Scope], None] = lambda scope: None,
        *,
        method: str = "POST",
        status: int = 200,
        tamper: Callable[[list[bytes | str]], list[bytes | str]] = lambda lines: lines,
        **more: Any,
    ) -> ServerExchange:
        """One exchange, resent if the verdict says so. ``tamper`` changes the ack lines on their way back."""
        exchange = self.client = self.begin(method=method, **more)
        while True:
            self.kinds.append(exchange.kind)
            inbound = self.server = self.open([value for _, value in exchange.headers])
            self.outcomes.append(inbound.outcome)
            if inbound.outcome == "refuse":
                answer, head, _ = inbound.refusal(self.unix)
                acks: list[bytes | str] = [value for name, value in head if name == b"otelctx-ack"]
            else:
                self.runs += 1
                app(inbound.scope)
                value = inbound.ack(method, self.response_headers, self.unix)
                answer, acks = status, [] if value is None else [value]
            verdict = exchange.close(answer, tamper(acks), self.now, self.unix)
            inbound.close()
            if verdict is Verdict.DONE:
                return inbound


@pytest.fixture
def node() -> Callable[..., Node]:
    """Makes nodes; by default with the one key that all of a test share."""

    def make(**settings: Any) -> Node:
        return Node(Settings(**{"keys": SECRET, **settings}), registry=REGISTRY)

    return make


@pytest.fixture
def wire(node: Callable[..., Node]) -> Wire:
    return Wire(node(), node())


@pytest.fixture
def chat() -> Iterator[Scope]:
    """A session that is current for the test."""
    with session("chat-42") as scope:
        yield scope


@pytest.fixture(autouse=True)
def no_default_node() -> Iterator[None]:
    set_default_node(None)
    yield
    set_default_node(None)


class Engine:
    """A store in memory that can be slow, broken or held up."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.ttls: list[float] = []
        self.loads = self.stores = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, key: str) -> bytes | None:
        self.loads += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.values.get(key)

    async def store(self, key: str, value: bytes, ttl: float) -> None:
        self.stores += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.values[key] = value
        self.ttls.append(ttl)


@pytest.fixture
def make_engine() -> type[Engine]:
    return Engine


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    yield made
    made.gate.set()
    for _ in range(5):  # whatever can go on goes on
        await asyncio.sleep(0)
