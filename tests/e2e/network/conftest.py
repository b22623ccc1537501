"""What the tests of the real network share: clients, workers, and a party that asks and judges every answer."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import uvicorn
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.clients.dispatch import instrument
from otelctx.context.current import ContextKey, UpKey, current_scope, session, snapshot
from otelctx.exchange.node import Node
from otelctx.settings import Settings

KEYS = "1:" + base64.b64encode(bytes(range(32))).decode()
TIER = ContextKey("network.tier", str, visibility="public")
NOTE = ContextKey("network.note", str)
SPENT = UpKey("network.spent", int, rule="sum")


def make_node(**options: Any) -> Node:
    shared = options.pop("shared", None)
    return Node(Settings(**{"keys": KEYS, **options}), shared=shared)


# --- clients ---


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    content: bytes


class Client:
    """A client of any library, blocking. ``options`` are what the library's own constructor takes."""

    def __init__(self, library: str, asynchronous: bool) -> None:
        self.library = import_module(library)
        self.name = library
        self._runner = asyncio.Runner() if asynchronous else None
        self.session: Any = None

    def make(self, **options: Any) -> Any:
        if self.name == "requests":
            self.session = self.library.Session()
            self.session.trust_env = False
            for name, value in options.items():
                setattr(self.session, name, value)
        elif self.name == "aiohttp":

            async def make() -> Any:
                return self.library.ClientSession(**options)

            self.session = self._run(make())
        else:
            cls = self.library.Client if self._runner is None else self.library.AsyncClient
            self.session = cls(trust_env=False, **{"timeout": 60, **options})
        return self.session

    def _run(self, awaitable: Any) -> Any:
        if self._runner is None:
            return awaitable

        async def wait() -> Any:
            return await awaitable

        return self._runner.run(wait(), context=copy_context())

    def send(
        self, method: str, url: str, content: bytes, headers: dict[str, str], follow: bool, **options: Any
    ) -> Response:
        if self.name in ("requests", "aiohttp"):
            options |= {"data": content, "allow_redirects": follow}
        else:
            options |= {"content": content, "follow_redirects": follow}
        if self.name == "aiohttp":
            return self._run(self._asend(method, url, headers=headers, **options))
        got = self._run(self.session.request(method, url, headers=headers, **options))
        return Response(got.status_code, {k.lower(): v for k, v in got.headers.items()}, got.content)

    async def _asend(self, method: str, url: str, **options: Any) -> Response:
        async with self.session.request(method, url, **options) as got:
            return Response(got.status, {k.lower(): v for k, v in got.headers.items()}, await got.read())

    def close(self) -> None:
        """Its connections, and all else of it; more than once is no harm."""
        if self.session is not None:
            self._run(self.session.aclose() if hasattr(self.session, "aclose") else self.session.close())
            self.session = None
        if self._runner is not None:
            self._runner.close()


CLIENTS = {
    "httpx": ("httpx", False),
    "httpx-async": ("httpx", True),
    "httpx2": ("httpx2", False),
    "httpx2-async": ("httpx2", True),
    "requests": ("requests", False),
    "aiohttp": ("aiohttp", True),
}


@pytest.fixture(params=[name for name, (library, _) in CLIENTS.items() if find_spec(library)])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    made = Client(*CLIENTS[request.param])
    yield made
    made.close()


# --- workers ---


class Worker:
    """An application that answers with what it sees of the context. ``kinds`` are those of the frames that came.

    ``headers`` are those of its responses, ``statuses`` the next ones, last first; ``redirects`` are from paths to
    URLs; ``work`` is done by the application. An unaware worker runs without the middleware.
    """

    def __init__(self, aware: bool = True, **options: Any) -> None:
        self.options = options
        self.aware = aware
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 200
        self.statuses: list[int] = []
        self.redirects: dict[str, str] = {}
        self.work: Callable[[], None] = lambda: None
        self.arrived: list[dict[str, list[str]]] = []
        self.versions: list[str] = []
        self.served = 0
        self.url = ""
        self.port = 0
        self.restart()

    def restart(self) -> None:
        """All that the process has known is gone."""
        self.node = make_node(**self.options)
        self._entry = ContextMiddleware(self._app, node=self.node) if self.aware else self._app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        lines: dict[str, list[str]] = {"path": [scope["path"]], "method": [scope["method"]]}
        for name, value in scope["headers"]:
            lines.setdefault(name.decode(), []).append(value.decode("latin-1"))
        self.arrived.append(lines)
        self.versions.append(scope["http_version"])
        await self._entry(scope, receive, send)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.served += 1
        while (await receive()).get("more_body"):
            pass
        SPENT.record(3)
        self.work()
        found = current_scope() if self.aware else None
        seen = {
            "state": {} if found is None else {e.name: e.value for e in found.state.entries()},
            "source": "none" if found is None else found.source,
            "incomplete": found is not None and found.incomplete,
        }
        headers = [*self.headers] or [(b"content-type", b"application/json")]
        status = self.statuses.pop() if self.statuses else self.status
        if (location := self.redirects.get(scope["path"])) is not None:
            status, headers = 307, [(b"location", location.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(seen).encode()})


class _Socket:
    """A running server, lent to one worker at a time: starting one takes a quarter of a second."""

    def __init__(self) -> None:
        self.app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


@contextmanager
def serving(app: Any, **options: Any) -> Iterator[int]:
    """``app`` under uvicorn; the port."""
    config = uvicorn.Config(
        app,
        **{"port": 0, "lifespan": "off", "ws": "none", "log_config": None, "timeout_graceful_shutdown": 1, **options},
    )
    server = uvicorn.Server(config)
    listening = config.bind_socket()
    listening.listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def serve() -> Callable[..., Any]:
    """``with serve(app, **options_of_uvicorn) as port``."""
    return serving


@pytest.fixture(scope="module")
def _sockets() -> Iterator[Callable[[], tuple[_Socket, int]]]:
    with ExitStack() as stack:
        made: list[tuple[_Socket, int]] = []

        def take() -> tuple[_Socket, int]:
            for entry, port in made:
                if entry.app is None:
                    return entry, port
            entry = _Socket()
            made.append((entry, stack.enter_context(serving(entry))))
            return made[-1]

        yield take


@pytest.fixture
def worker(_sockets: Callable[[], tuple[_Socket, int]]) -> Iterator[Callable[..., Worker]]:
    """Starts workers, each at a port of its own until the end of the test."""
    used: list[_Socket] = []

    def start(**options: Any) -> Worker:
        made = Worker(**options)
        entry, made.port = _sockets()
        entry.app, made.url = made, f"http://127.0.0.1:{made.port}"
        used.append(entry)
        return made

    yield start
    for entry in used:
        entry.app = None


# --- who asks ---


@dataclass
class Answer:
    """``seen`` is what the application saw, ``spent`` what came back of what it recorded."""

    response: Response
    expected: dict[str, Any]
    spent: int
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return str(self.seen["source"])


class Party:
    """Asks through one client and holds every answer against the rule: the application sees its caller's state, or it
    is told that it does not."""

    def __init__(self, client: Client, node: Node, **options: Any) -> None:
        self.client = client
        self.node = node
        self._exporter = InMemorySpanExporter()
        self._tracers = TracerProvider(shutdown_on_exit=False)
        self._tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        instrument(client.make(**options), node=node, tracer_provider=self._tracers)

    def ask(
        self,
        url: str,
        *,
        chat: str = "chat-1",
        tier: str = "gold",
        note: str = "n" * 300,
        method: str = "POST",
        content: bytes = b"x",
        headers: dict[str, str] | None = None,
        status: int = 200,
        follow: bool = False,
        judge: bool = True,
        **options: Any,
    ) -> Answer:
        with session(chat), TIER.bound(tier), NOTE.bound(note):
            expected = {e.name: e.value for e in snapshot().entries()}
            response = self.client.send(method, url, content, headers or {}, follow, **options)
            answer = Answer(response, expected, SPENT.get() or 0)
        assert response.status == status, response.content[:300]
        if status == 200 and method != "HEAD":
            answer.seen = json.loads(response.content)
        if judge and answer.seen:
            self._judge(answer)
        return answer

    @staticmethod
    def _judge(answer: Answer) -> None:
        seen = answer.seen
        if seen["source"] == "frame" and not seen["incomplete"]:
            assert seen["state"] == answer.expected
        else:
            assert seen["state"].items() <= {**answer.expected, "otelctx.incomplete": True}.items()

    def mixed(self, url: str, times: int = 8) -> list[Answer]:
        """Two sessions whose states change."""
        return [
            self.ask(url, chat=f"chat-{at % 2}", tier=("gold", "silver", "bronze")[at % 3], note="n" * (300 + at // 4))
            for at in range(times)
        ]

    def kinds(self) -> list[str | None]:
        """Of what has been sent since the last look: the frame of each attempt, ``None`` for one without."""
        spans = self._exporter.get_finished_spans()
        self._exporter.clear()
        self.lost = sum(event.name == "otelctx.context.lost" for span in spans for event in span.events)
        return [span.attributes.get("otelctx.frame.kind") for span in spans if span.attributes is not None]


@pytest.fixture
def party(client: Client) -> Callable[..., Party]:
    """The client as a party: ``options`` of its node, and of the library's client in ``library``."""

    def make(library: dict[str, Any] | None = None, **options: Any) -> Party:
        return Party(client, make_node(**options), **(library or {}))

    return make


class Clock:
    """The clients' clock: :meth:`forward` is how ten minutes pass."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def forward(self, seconds: float) -> None:
        self._ahead += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("otelctx.clients.attempt.monotonic", made)
    return made
