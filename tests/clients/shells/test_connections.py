"""Every client: whose connection it is, that it is used again, and that a body may be left in any way, once."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from otelctx.clients.peer import peer_of
from otelctx.exchange.node import Node


class Held:
    """A body whose end waits until the test lets go of it."""

    def __init__(self, worker: Any) -> None:
        self._gate = threading.Event()
        worker.handler = self._handle

    def _handle(self, request: Any) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"line\n"
            await asyncio.to_thread(self._gate.wait, 60)
            yield b"last\n"

        request.chunks = chunks()

    def release(self) -> None:
        self._gate.set()


@pytest.fixture
def held(worker: Any) -> Iterator[Held]:
    made = Held(worker)
    yield made
    made.release()


# the peer


def test_the_peer_is_the_other_end_of_the_connection(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, held: Held
) -> None:
    """A proxy here: what the URL says is another thing, and is not looked up."""
    client = driver.client(node(), proxy=worker.url)
    driver.stream(client, "http://api.example.com/v1", 1)
    attributes = seen.span().attributes
    assert (attributes["server.address"], attributes["server.port"]) == ("api.example.com", 80)
    peer = (attributes["network.peer.address"], attributes["network.peer.port"])
    assert peer == ("127.0.0.1", int(worker.url.rpartition(":")[2]))
    assert [set(d) & {"network.peer.address", "network.peer.port"} for d in seen.durations()] == [set()]


def test_where_there_was_no_connection_there_is_no_peer(driver: Any, node: Callable[..., Node], seen: Any) -> None:
    client = driver.client(node())
    with pytest.raises(Exception, match=r"(?i)connect"):
        driver.post(client, "http://127.0.0.1:1/")
    assert "network.peer.address" not in seen.span().attributes


def _raising() -> Any:
    raise OSError("gone")


@pytest.mark.parametrize("found", [None, "", "/run/socket", b"", (), ("a",), (b"127.0.0.1", 1), ("127.0.0.1", "80")])
def test_what_is_no_address_with_a_port_is_no_peer(found: Any) -> None:
    assert peer_of(lambda: found) is None


def test_a_peer_is_asked_for_without_any_risk() -> None:
    assert peer_of(_raising) is None
    assert peer_of(lambda: ("::1", 443, 0, 0)) == ("::1", 443)


# the pool


def test_connections_are_used_again(driver: Any, worker: Any, node: Callable[..., Node], seen: Any) -> None:
    client = driver.client(node())
    for _ in range(4):
        driver.post(client, worker.url, content=b"x")
    assert len({request.port for request in worker.seen}) == 1
    assert len(seen.spans()) == len(seen.durations()) == 4


def test_a_body_that_was_left_does_not_cost_the_pool_a_place(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, held: Held
) -> None:
    options: dict[str, Any] = {}
    if driver.library.__name__.startswith("httpx"):
        options = {"limits": driver.library.Limits(max_connections=1), "timeout": 5}
    client = driver.client(node(), **options)
    for _ in range(3):
        driver.stream(client, worker.url, 1)
    held.release()
    assert len(driver.stream(client, worker.url, None)) >= 1
    assert len(seen.spans()) == len(seen.durations()) == 4


# the ways to leave a body


def lines(driver: Any, response: Any) -> Any:
    """An iterator over the body, begun, in each library's own way."""
    if driver.library.__name__ == "aiohttp":
        found = response.content.__aiter__()
    elif driver.library.__name__ == "requests":
        found = response.iter_lines()
    else:
        found = response.aiter_lines() if driver.asynchronous else response.iter_lines()
    first = driver.run(anext(found)) if driver.asynchronous else next(iter(found))
    assert first in ("line", b"line", b"line\n")
    return found


def close(driver: Any, response: Any) -> None:
    if driver.asynchronous and hasattr(response, "aclose"):
        driver.run(response.aclose())
    else:
        response.close()


WAYS: dict[str, Callable[[Any, Any, Held], None]] = {
    "closed unread": lambda driver, response, held: close(driver, response),
    "closed twice": lambda driver, response, held: [close(driver, response) for _ in range(2)] and None,
    "closed within its lines": lambda driver, response, held: (lines(driver, response), close(driver, response))[1],
    "read, then closed": lambda driver, response, held: (
        held.release(),
        driver.read(response),
        close(driver, response),
    )[2],
}


@pytest.mark.parametrize("way", list(WAYS))
def test_however_a_body_is_left_it_ends_once_and_is_no_error(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, held: Held, way: str
) -> None:
    response = driver.open(driver.client(node()), worker.url)
    assert seen.spans() == []
    WAYS[way](driver, response, held)
    del response
    gc.collect()
    assert seen.span().status.is_unset
    assert ["error.type" in d for d in seen.durations()] == [False]


def test_lines_that_nobody_goes_on_with_and_nobody_closes_end_too(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, held: Held, eventually: Callable[[Any], None]
) -> None:
    """``for line in response.iter_lines(): break``, and the response is forgotten."""
    response = driver.open(driver.client(node()), worker.url)
    found = lines(driver, response)
    assert seen.spans() == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del found, response
        driver.forget()
        for _ in range(10):  # the loop finalises generators that were left when it runs, one inside of another
            driver.run(asyncio.sleep(0) if driver.asynchronous else None)
            gc.collect()
            if seen.spans():
                break
    eventually(lambda: len(seen.spans()) == 1)
    assert seen.span().status.is_unset
    assert len(seen.durations()) == 1


@pytest.mark.parametrize("driver", ["httpx-async", "httpx2-async", "aiohttp"], indirect=True)
def test_a_body_that_is_cancelled_is_no_error(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    client = driver.client(node())
    response = driver.open(client, worker.url)
    reading = response.read() if driver.library.__name__ == "aiohttp" else response.aread()

    async def cancelled() -> None:
        task = asyncio.ensure_future(reading)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    driver.run(cancelled())
    close(driver, response)
    assert seen.span().status.is_unset
    assert ["error.type" in d for d in seen.durations()] == [False]
    assert [r for r in caplog.records if r.name.startswith("opentelemetry")] == []


# uploads


def test_an_upload_in_pieces_arrives_and_lasts_to_the_end_of_the_answer(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any
) -> None:
    pieces = [bytes([n]) * 10_000 for n in range(30)]
    assert driver.post(driver.client(node()), worker.url, content=driver.body(pieces)).status == 200
    assert worker.seen[0].body == b"".join(pieces)
    assert len(seen.spans()) == len(seen.durations()) == 1


def test_an_upload_that_breaks_is_an_error_of_that_request(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any
) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a"
        raise ZeroDivisionError("the file is gone")

    async def later() -> AsyncIterator[bytes]:
        for piece in pieces():
            yield piece

    client = driver.client(node())
    with pytest.raises(Exception, match=r".*"):
        driver.post(client, worker.url, content=later() if driver.asynchronous else pieces())
    span, (duration,) = seen.span(), seen.durations()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == duration["error.type"]
