"""Websockets through a real gateway, with real clients and workers."""

from __future__ import annotations

import asyncio
import threading
from socket import SHUT_RDWR
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from otelctx import semconv
from otelctx.gateway.options import Options

UNCHECKED = Options(health_path="")
SESSION = semconv.GATEWAY_SESSION_HEADER


def ws(url: str) -> str:
    return url.replace("http://", "ws://")


async def echo(request: Any) -> None:
    await request.receive()
    await request.send({"type": "websocket.accept", "headers": [(b"x-one", b"1")]})
    while (message := await request.receive())["type"] == "websocket.receive":
        kind = "text" if message.get("text") is not None else "bytes"
        await request.send({"type": "websocket.send", kind: message[kind]})
    request.scope["closed"] = (message.get("code"), message.get("reason"))


@pytest.mark.parametrize("message", ["", "text é 🦊", b"", b"\x00\xff" * 50_000, "x" * 500_000])
def test_messages_of_both_kinds_get_through_whole(shared: Any, workers: Any, message: str | bytes) -> None:
    workers[0].sockets = echo
    with connect(ws(shared.url), proxy=None, open_timeout=60) as socket:
        for _ in range(3):
            socket.send(message)
            assert socket.recv(60) == message


def test_target_headers_and_subprotocol_get_through(shared: Any, workers: Any) -> None:
    async def choose(request: Any) -> None:
        await request.receive()
        await request.send({"type": "websocket.accept", "subprotocol": "b", "headers": [(b"x-one", b"1")]})
        await request.receive()

    workers[0].sockets = choose
    extra = {"authorization": "Bearer k", "otelctx": ":AAAA:", "origin": "http://site.example"}
    with connect(
        ws(shared.url) + "/a%2fb?c=%20d", subprotocols=["a", "b"], additional_headers=extra, proxy=None, open_timeout=60
    ) as s:
        assert s.subprotocol == "b"
        assert s.response is not None
        assert s.response.headers["x-one"] == "1"
        assert s.response.headers[SESSION]
    (request,) = workers[0].seen
    assert request.target == b"/a%2fb?c=%20d"
    assert request.scope["subprotocols"] == ["a", "b"]
    assert (request.values("authorization"), request.values("origin")) == (["Bearer k"], ["http://site.example"])
    assert request.values("otelctx") != [":AAAA:"]
    assert len(request.values("host")) == len(request.values("sec-websocket-key")) == 1


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1001, "going"), (1011, "oops"), (4321, "own")])
def test_the_workers_close_reaches_the_client(shared: Any, workers: Any, code: int, reason: str) -> None:
    async def close(request: Any) -> None:
        await request.receive()
        await request.send({"type": "websocket.accept"})
        await request.send({"type": "websocket.close", "code": code, "reason": reason})

    workers[0].sockets = close
    with connect(ws(shared.url), proxy=None, open_timeout=60) as socket:
        with pytest.raises(ConnectionClosed):
            socket.recv(60)
        assert (socket.close_code, socket.close_reason) == (code, reason)


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1001, "bye"), (3999, "own")])
def test_the_clients_close_reaches_the_worker(
    shared: Any, workers: Any, eventually: Any, code: int, reason: str
) -> None:
    workers[0].sockets = echo
    with connect(ws(shared.url), proxy=None, open_timeout=60) as socket:
        socket.send("x")
        socket.recv(60)
        socket.close(code, reason)
    eventually(lambda: "closed" in workers[0].seen[0].scope)
    assert workers[0].seen[0].scope["closed"] == (code, reason)


def test_a_client_that_vanishes_ends_the_workers_connection(shared: Any, workers: Any, eventually: Any) -> None:
    workers[0].sockets = echo
    with connect(ws(shared.url), proxy=None, open_timeout=60, close_timeout=0.1) as socket:
        socket.send("x")
        socket.recv(60)
        socket.socket.shutdown(SHUT_RDWR)
    eventually(lambda: "closed" in workers[0].seen[0].scope)
    eventually(lambda: shared.gateway.active == 0)


def test_a_worker_that_dies_is_a_bad_gateway_to_the_client(edge: Any, scripted: Any) -> None:
    import base64
    import hashlib

    def die(connection: Any) -> None:
        head = connection.recv(65536).decode()
        key = next(line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key"))
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        connection.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-accept: " + accept + b"\r\n\r\n\x81\x01x"
        )

    with connect(ws(edge([scripted(die).url], options=UNCHECKED).url), proxy=None, open_timeout=60) as socket:
        assert socket.recv(60) == "x"
        with pytest.raises(ConnectionClosed):
            socket.recv(60)
        assert socket.close_code == 1014


@pytest.mark.parametrize("status", [401, 302, 503])
def test_a_denial_gets_through_and_no_redirect_is_followed(shared: Any, workers: Any, status: int) -> None:
    async def deny(request: Any) -> None:
        await request.receive()
        headers = [(b"location", b"http://elsewhere.example/"), (b"otelctx-ack", b"x")]
        await request.send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await request.send({"type": "websocket.http.response.body", "body": b"because"})

    workers[0].sockets = deny
    answer = shared.talk(
        b"GET / HTTP/1.1\r\nhost: e\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.endswith(b"because")
    assert b"otelctx-ack" not in answer
    assert len(workers[0].seen) == 1


@pytest.mark.parametrize(
    ("headers", "status", "code"), [({SESSION: "made-up"}, 404, "session_not_found"), ({}, 502, "upstream_unreachable")]
)
def test_what_goes_wrong_before_the_handshake_is_json(
    edge: Any, refused: str, headers: dict[str, str], status: int, code: str
) -> None:
    running = edge([refused], options=UNCHECKED)
    with pytest.raises(InvalidStatus) as caught:
        connect(ws(running.url), additional_headers=headers, proxy=None, open_timeout=60)
    assert caught.value.response.status_code == status
    assert code.encode() in bytes(caught.value.response.body or b"")


HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nhost: e\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    "rest",
    [
        b"content-length: 5\r\n\r\nhello",
        b"content-length: 5\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_a_handshake_with_a_body_is_refused_at_once(shared: Any, workers: Any, rest: bytes) -> None:
    """Else its connection would stay open with nothing to wait for and nobody to end it."""
    assert shared.talk(HANDSHAKE + rest, within=60).startswith(b"HTTP/1.1 400 ")
    assert workers[0].seen == []


def test_a_handshake_waits_for_no_answer_before_it(shared: Any, workers: Any) -> None:
    """Two answers are never written into each other; who sends both at once gets an end."""
    released = threading.Event()

    async def slow(request: Any) -> None:
        await asyncio.to_thread(released.wait, 60)
        await request.answer(b"late")

    workers[0].handler = slow
    try:
        got = shared.talk(b"GET / HTTP/1.1\r\nhost: e\r\n\r\n" + HANDSHAKE + b"\r\n", within=60)
    finally:
        released.set()
    assert got == b""


def test_a_message_over_the_bound_closes(edge: Any, workers: Any) -> None:
    workers[0].sockets = echo
    running = edge([workers[0].url], options=Options(health_path="", max_message=1000))
    with connect(ws(running.url), proxy=None, open_timeout=60) as socket:
        socket.send("x" * 1001)
        with pytest.raises(ConnectionClosed):
            socket.recv(60)
        assert socket.close_code == 1009


def test_a_slow_reader_slows_the_worker_down(shared: Any, workers: Any) -> None:
    written, stuck = [0], threading.Event()

    async def flood(request: Any) -> None:
        await request.receive()
        await request.send({"type": "websocket.accept"})
        for _ in range(1000):
            try:
                async with asyncio.timeout(0.5):
                    await request.send({"type": "websocket.send", "bytes": b"x" * 65536})
            except TimeoutError:
                stuck.set()
                return
            written[0] += 65536

    workers[0].sockets = flood
    with connect(ws(shared.url), proxy=None, open_timeout=60, max_queue=1, close_timeout=0.1):
        assert stuck.wait(60)
    assert written[0] < 40_000_000


def test_a_handshake_carries_the_trace_and_a_frame(edge: Any, start_worker: Any, seen: Any, eventually: Any) -> None:
    worker = start_worker(aware=True, tracer_provider=seen.tracers, meter_provider=seen.meters)
    worker.sockets = echo
    running = edge([worker.url], options=UNCHECKED, **seen.options)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with connect(ws(running.url), additional_headers={"traceparent": parent}, proxy=None, open_timeout=60) as socket:
        socket.send("x")
        socket.recv(60)
    eventually(lambda: len(seen.spans()) == 5)
    (outgoing,) = seen.spans("CLIENT")
    servers = {s.context.span_id: s for s in seen.spans("SERVER")}
    assert outgoing.attributes[semconv.FRAME_KIND] == "full"
    assert outgoing.attributes["http.response.status_code"] == 101
    assert outgoing.parent.span_id in servers
    (inner,) = [s for s in servers.values() if s.parent.span_id == outgoing.context.span_id]
    assert format(inner.context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"
