"""The servers that people run ASGI applications under, in one process: HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import hypercorn.asyncio
import pytest
from hypercorn.config import Config

from otelctx.clients.dispatch import instrument
from otelctx.context.current import session
from otelctx.exchange.node import Node
from otelctx.settings import Settings

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_uvicorn(http: str, worker: Any, serve: Any, party: Callable[..., Any]) -> None:
    origin = worker()
    caller = party()
    with serve(origin, http=http) as port:
        url = f"http://127.0.0.1:{port}"
        answers = [caller.ask(url) for _ in range(5)]
        assert (caller.kinds(), caller.lost) == (["full", "full", "full", "ref", "ref"], 0)
        assert {(a.source, a.spent) for a in answers} == {("frame", 3)}
        caller.mixed(url)
        origin.restart()
        assert caller.ask(url, content=b"x" * 60_000).source == "frame"
        assert caller.kinds()[-2:] == ["ref", "full"]
        assert caller.ask(url, content=b"x" * 200_000).source == "frame"
        assert caller.kinds() == ["full"], "a body that is not sent twice"


@contextmanager
def hypercorn_serving(app: Any) -> Iterator[int]:
    """HTTP/2 without TLS, to who begins with it; and HTTP/1.1."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = Config()
    config.bind = [f"fd://{listening.fileno()}"]
    config.errorlog = None
    config.graceful_timeout = 1
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(hypercorn.asyncio.serve(app, config, shutdown_trigger=stop.wait))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        listening.detach()  # hypercorn has closed it


def test_hypercorn(worker: Any, party: Callable[..., Any], client: Any) -> None:
    """Over HTTP/2 for those that can, over HTTP/1.1 for the others."""
    newer = client.name in ("httpx", "httpx2")
    origin = worker()
    caller = party(library={"http1": False, "http2": True} if newer else {})
    with hypercorn_serving(origin) as port:
        url = f"http://127.0.0.1:{port}"
        answers = [caller.ask(url) for _ in range(6)]
        assert (caller.kinds(), caller.lost) == (["full"] * 3 + ["ref"] * 3, 0)
        assert {(a.source, a.spent) for a in answers} == {("frame", 3)}
        assert len({lines["otelctx"][0] for lines in origin.arrived[-3:]}) == 1
        caller.mixed(url)
        origin.restart()
        assert caller.ask(url).source == "frame"
        assert caller.kinds()[-2:] == ["ref", "full"]
        assert caller.ask(url).source == "frame", "the connection goes on after a refusal"
        assert caller.kinds() == ["ref"]
    assert origin.versions[-1] == ("2" if newer else "1.1")


def test_a_repeated_ref_takes_one_byte_on_http_2(worker: Any, relay: Any) -> None:
    """The same state is the same bytes, which HPACK then knows by an index: one byte a request, beside a plain one."""
    origin = worker()
    sizes: dict[str, int] = {}
    with hypercorn_serving(origin) as port:
        for name in ("plain", "ref"):
            way = relay(port)
            url = f"http://127.0.0.1:{way.port}/"
            with httpx.Client(trust_env=False, timeout=60, http1=False, http2=True) as client, session("chat-1"):
                if name == "ref":
                    instrument(client, node=Node(Settings(keys=origin.node.settings.keys)))
                for _ in range(6):
                    client.post(url, content=b"x")
                before = len(way.sizes)
                for _ in range(10):
                    assert client.post(url, content=b"x").json()["source"] == ("none" if name == "plain" else "frame")
                sizes[name] = sum(way.sizes[before:])
    assert sizes["ref"] - sizes["plain"] == 10
