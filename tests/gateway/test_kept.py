"""A connection that is kept may be ended by the other side at any moment, also while a request is on its way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.gateway.connection import Connection
from otelctx.gateway.failures import UpstreamClosed
from otelctx.gateway.options import Options

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
UNCHECKED = Options(health_path="")


def one_each(after: bytes = b"", heard: list[bytes] | None = None) -> Callable[[socket.socket], None]:
    """One answer to a connection, and to the second request on it ``after`` and the end."""

    def script(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(OK)
        second = connection.recv(65536)
        if second and heard is not None:
            heard.append(second)
        connection.sendall(after)

    return script


@pytest.mark.parametrize(
    ("method", "headers"),
    [("GET", {}), ("PUT", {}), ("DELETE", {}), ("POST", {"idempotency-key": "1"})],
)
def test_what_may_be_repeated_gets_a_new_connection_to_the_same_worker(
    client: Any, edge: Any, scripted: Any, method: str, headers: dict[str, str]
) -> None:
    heard: list[bytes] = []
    upstream = scripted(one_each(heard=heard))
    running = edge([upstream.url], options=UNCHECKED)
    answers = [client.request(method, running.url, content=b"x", headers=headers) for _ in range(4)]
    assert [answer.text for answer in answers] == ["ok"] * 4
    assert (len(heard), upstream.connections) == (3, 4)
    (known,) = running.gateway.upstreams
    assert known.health._failures == 0, "it may end a connection: that is no failure"


@pytest.mark.parametrize(
    ("method", "body"), [("POST", b"x"), ("PATCH", b"x"), ("PUT", [b"x"])], ids=["post", "patch", "streamed"]
)
def test_what_may_have_been_done_or_can_not_be_sent_again_is_not(
    client: Any, edge: Any, scripted: Any, method: str, body: Any
) -> None:
    upstream = scripted(one_each())
    running = edge([upstream.url], options=UNCHECKED)
    assert client.get(running.url).text == "ok"
    answer = client.request(method, running.url, content=body if isinstance(body, bytes) else iter(body))
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_closed")
    assert upstream.connections == 1


def test_an_answer_that_has_begun_is_not_asked_for_again(client: Any, edge: Any, scripted: Any) -> None:
    upstream = scripted(one_each(after=b"HTTP/1.1 200 OK\r\ncont"))
    running = edge([upstream.url], options=UNCHECKED)
    assert [client.get(running.url).status_code for _ in range(2)] == [200, 502]
    assert upstream.connections == 1


def test_a_worker_that_ends_a_new_connection_too_has_failed(client: Any, edge: Any, scripted: Any) -> None:
    served = iter([OK, b""])

    def script(connection: socket.socket) -> None:
        while connection.recv(65536) and (said := next(served, b"")):
            connection.sendall(said)

    upstream = scripted(script)
    running = edge([upstream.url], options=UNCHECKED)
    assert [client.get(running.url).status_code for _ in range(2)] == [200, 502]
    assert upstream.connections == 2
    (known,) = running.gateway.upstreams
    assert known.health._failures == 1


class Wire(asyncio.Transport):
    """Takes everything and goes nowhere."""

    aborted = False

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


async def test_what_comes_unasked_ends_a_connection() -> None:
    """Else it would be taken for the next request's answer, which may be another client's."""
    connection, wire = Connection(), Wire()
    connection.connection_made(wire)
    connection.begin("GET")
    connection.write(b"GET / HTTP/1.1\r\n\r\n", last=True)
    connection.data_received(OK)
    assert await connection.chunk(None) == b"ok"
    assert connection.finish()
    connection.data_received(b"H")
    assert (connection.closed, wire.aborted) == (True, True)


async def test_a_connection_that_ended_before_its_request_began_is_noticed_at_once() -> None:
    """Nobody waits for the timeout of a first byte that can't come."""
    connection = Connection()
    connection.eof_received()
    connection.begin("GET")
    connection.write(b"GET / HTTP/1.1\r\n\r\n", last=True)
    async with asyncio.timeout(60):
        with pytest.raises(UpstreamClosed):
            await connection.head(None)
