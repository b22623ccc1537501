"""Requests that share a connection: each has its own span, its own end, and the version that was spoken."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import hypercorn.asyncio
import pytest
from hypercorn.config import Config

from otelctx.exchange.node import Node

pytestmark = pytest.mark.parametrize("driver", ["httpx", "httpx-async", "httpx2", "httpx2-async"], indirect=True)


@pytest.fixture
def shared(serve: Callable[..., Any]) -> Iterator[Any]:
    """A worker behind HTTP/2 without TLS."""
    worker = serve()
    listening = socket.create_server(("127.0.0.1", 0))
    config = Config()
    config.bind = [f"fd://{listening.fileno()}"]
    config.errorlog = None
    config.graceful_timeout = 0.2
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(hypercorn.asyncio.serve(worker, config, shutdown_trigger=stop.wait))

    thread = threading.Thread(target=run)
    thread.start()
    worker.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    yield worker
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    listening.detach()  # hypercorn has closed it


def test_streams_on_one_connection_end_each_on_its_own(
    driver: Any, shared: Any, node: Callable[..., Node], seen: Any
) -> None:
    gates = {"/a": threading.Event(), "/b": threading.Event()}

    def handler(request: Any) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.to_thread(gates[request.path].wait, 60)
            yield b"last"

        request.chunks = chunks()

    shared.handler = handler
    client = driver.client(node(), http1=False, http2=True)
    left, read = (driver.open(client, shared.url + path) for path in gates)
    assert seen.spans() == []
    driver.run(left.aclose()) if driver.asynchronous else left.close()
    assert [span.attributes["url.full"][-2:] for span in seen.spans()] == ["/a"]
    gates["/b"].set()
    assert driver.read(read) == b"firstlast"
    gates["/a"].set()
    assert [span.attributes["url.full"][-2:] for span in seen.spans()] == ["/a", "/b"]
    port = int(shared.url.rpartition(":")[2])
    for span in seen.spans():
        assert (span.attributes["network.protocol.version"], span.attributes["network.peer.port"]) == ("2", port)
        assert span.status.is_unset
    assert len({request.port for request in shared.seen}) == 1
    assert len(seen.durations()) == 2
