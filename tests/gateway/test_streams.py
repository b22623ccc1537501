"""Streams both ways through a real gateway: at once, no faster than they are taken, and never with a false end."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest

from otelctx.gateway import proxy
from otelctx.gateway.failures import UpstreamTimeout
from otelctx.gateway.options import Options, Timeouts

SSE = [(b"content-type", b"text/event-stream")]


def test_each_event_comes_through_before_the_next_is_sent(client: Any, shared: Any, workers: Any) -> None:
    go = threading.Semaphore(0)

    async def events(request: Any) -> None:
        await request.start(200, SSE)
        for n in range(5):
            await request.write(b"data: %d\n\n" % n)
            assert await asyncio.to_thread(go.acquire, timeout=60)
        await request.write(b"", last=True)

    workers[0].handler = events
    with client.stream("POST", shared.url, content=b"x") as answer:
        for n, piece in enumerate(answer.iter_raw()):
            assert piece == b"data: %d\n\n" % n
            go.release()
    assert n == 4


def test_a_body_that_has_no_length_is_sent_on_while_it_comes(client: Any, shared: Any, workers: Any) -> None:
    heard = threading.Event()

    async def first_then_all(request: Any) -> None:
        message = await request.receive()
        heard.set()
        request.body = message["body"]
        await request.answer(await request.read())

    workers[0].handler = first_then_all

    def pieces() -> Any:
        yield b"one"
        assert heard.wait(60)
        yield b"two"

    assert client.post(shared.url, content=pieces()).content == b"onetwo"


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 3_000_000])
@pytest.mark.parametrize("chunked", [True, False])
def test_bodies_of_any_size_arrive_whole_and_come_back_whole(
    client: Any, shared: Any, workers: Any, size: int, chunked: bool
) -> None:
    async def echo(request: Any) -> None:
        await request.answer(await request.read())

    workers[0].handler = echo
    body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    content = iter([body[at : at + 50_000] for at in range(0, size, 50_000)]) if chunked else body
    assert client.post(shared.url, content=content).content == body


def test_a_slow_reader_slows_the_worker_down(shared: Any, workers: Any, eventually: Any) -> None:
    written = [0]

    async def flood(request: Any) -> None:
        await request.start(200, SSE)
        for _ in range(2000):
            await request.write(b"x" * 65536)
            written[0] += 65536
        await request.write(b"", last=True)

    workers[0].handler = flood
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as reader:
        reader.sendall(b"GET / HTTP/1.1\r\nhost: e\r\n\r\n")
        reader.recv(100)
        last = -1
        while written[0] != last:
            last = written[0]
            time.sleep(0.2)
        assert written[0] < 40_000_000, "what nobody has taken is held by sockets, and not by the gateway"


def test_a_slow_worker_slows_the_uploader_down(shared: Any, workers: Any, eventually: Any) -> None:
    go = threading.Event()

    async def asleep(request: Any) -> None:
        await asyncio.to_thread(go.wait, 60)
        await request.answer()

    workers[0].handler = asleep
    sent = 0
    with socket.create_connection(("127.0.0.1", shared.port), timeout=0.5) as writer:
        writer.sendall(b"POST / HTTP/1.1\r\nhost: e\r\ntransfer-encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        with suppress(TimeoutError):
            while sent < 100_000_000:
                writer.sendall(chunk)
                sent += 65536
    assert sent < 40_000_000
    go.set()


def test_when_the_client_goes_the_worker_is_told_at_once(shared: Any, workers: Any) -> None:
    gone, sent = threading.Event(), [0]

    async def endless(request: Any) -> None:
        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            gone.set()

        await request.read()
        watching = asyncio.create_task(watch())
        await request.start(200, SSE)
        while not gone.is_set():
            await request.write(b"data: x\n\n")
            sent[0] += 1
            await asyncio.sleep(0.02)
        await watching

    workers[0].handler = endless
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        client.stream("POST", shared.url, content=b"{}") as answer,
    ):
        next(answer.iter_raw())
    assert gone.wait(60)
    before = sent[0]
    time.sleep(0.1)
    assert sent[0] <= before + 1


def test_a_client_that_goes_before_the_answer_ends_the_request(shared: Any, workers: Any, eventually: Any) -> None:
    """A turn that nobody waits for must not keep a model busy."""
    gone, begun = threading.Event(), threading.Event()

    async def thinking(request: Any) -> None:
        await request.read()
        begun.set()
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone.set()

    workers[0].handler = thinking
    with socket.create_connection(("127.0.0.1", shared.port)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: e\r\ncontent-length: 2\r\n\r\n{}")
        assert begun.wait(60)
    assert gone.wait(60)
    eventually(lambda: shared.gateway.active == 0)


def test_a_client_that_goes_in_its_body_ends_the_request(shared: Any, workers: Any, eventually: Any) -> None:
    gone = threading.Event()

    async def reading(request: Any) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone.set()

    workers[0].handler = reading
    with socket.create_connection(("127.0.0.1", shared.port)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: e\r\ncontent-length: 99999\r\n\r\n{")
        eventually(lambda: workers[0].seen)
    assert gone.wait(60)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("reset", [True, False])
def test_a_worker_that_dies_in_a_stream_leaves_an_error_and_no_clean_end(edge: Any, scripted: Any, reset: bool) -> None:
    def die(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        connection.sendall(b"9\r\ndata: 1\n\n\r\n")
        time.sleep(0.1)
        if reset:
            _reset(connection)

    got = edge([scripted(die).url], options=Options(health_path="")).talk(b"GET / HTTP/1.1\r\nhost: e\r\n\r\n")
    head, _, body = got.partition(b"\r\n\r\n")
    assert b" 200 " in head
    assert b"data: 1\n\n" in body
    assert b'data: {"error": {"message": ' in body
    assert b'"code": "upstream_closed"' in body
    assert not body.endswith(b"0\r\n\r\n"), "a chunked body's end would say that all is well"


@pytest.mark.parametrize("head", [b"content-length: 99", b"content-encoding: gzip\r\ntransfer-encoding: chunked"])
def test_no_error_is_written_into_what_it_would_garble(edge: Any, scripted: Any, head: bytes) -> None:
    def die(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + head + b"\r\n\r\n1\r\nx\r\n")

    got = edge([scripted(die).url], options=Options(health_path="")).talk(b"GET / HTTP/1.1\r\nhost: e\r\n\r\n")
    assert b" 200 " in got
    assert b"error" not in got
    assert not got.endswith(b"0\r\n\r\n")


def test_the_client_library_of_openai_raises_when_a_stream_breaks_off(edge: Any, scripted: Any) -> None:
    openai = pytest.importorskip("openai")
    event = b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}\n\n'

    def die(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        connection.sendall(b"%x\r\n%b\r\n" % (len(event), event))
        time.sleep(0.05)

    running = edge([scripted(die).url], options=Options(health_path=""))
    with (
        httpx.Client(trust_env=False, timeout=60) as http,
        openai.OpenAI(base_url=running.url, api_key="k", http_client=http, max_retries=0) as made,
    ):
        stream = made.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
        with pytest.raises(openai.APIError):
            list(stream)


def test_a_body_that_breaks_off_is_not_taken_for_whole(edge: Any, scripted: Any, client: Any) -> None:
    def die(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")

    with pytest.raises(httpx.RemoteProtocolError):
        client.get(edge([scripted(die).url], options=Options(health_path="")).url)


def test_a_body_that_ends_with_the_connection_is_whole(edge: Any, scripted: Any, client: Any) -> None:
    def close(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nall of it")

    answer = client.get(edge([scripted(close).url], options=Options(health_path="")).url)
    assert (answer.content, answer.headers["transfer-encoding"]) == (b"all of it", "chunked")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"", "upstream_closed"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "upstream_closed"),
        (b"SSH-2.0-OpenSSH\r\n", "upstream_malformed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", "upstream_malformed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\nab", "upstream_malformed"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000, "upstream_malformed"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300 + b"\r\n", "upstream_malformed"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "upstream_malformed"),
        (b"HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n", "upstream_malformed"),
    ],
)
def test_what_is_no_response_is_502(edge: Any, scripted: Any, client: Any, said: bytes, code: str) -> None:
    def say(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(said)

    answer = client.get(edge([scripted(say).url], options=Options(health_path="")).url)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, code)


def test_1xx_responses_are_waited_out(edge: Any, scripted: Any, client: Any) -> None:
    def hints(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        connection.sendall(b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\nx: y\r\n\r\nok")

    answer = client.get(edge([scripted(hints).url], options=Options(health_path="")).url)
    assert (answer.status_code, answer.content, answer.headers["x"], "link" in answer.headers) == (
        201, b"ok", "y", False,
    )  # fmt: skip


def test_bytes_after_a_response_are_nobodys_response(edge: Any, scripted: Any, client: Any) -> None:
    """A worker, or who has got in between, must not answer a request that it has not been sent."""

    def generous(connection: socket.socket) -> None:
        connection.recv(65536)
        one = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
        connection.sendall(one + b"first" + one + b"wrong")
        connection.recv(65536)

    upstream = scripted(generous)
    running = edge([upstream.url], options=Options(health_path=""))
    assert [client.get(running.url).text for _ in range(3)] == ["first"] * 3
    assert upstream.connections == 3


def test_an_early_answer_gets_through_while_the_body_still_comes(edge: Any, shared: Any, workers: Any) -> None:
    async def refuse(request: Any) -> None:
        await request.answer(b"too much", 413, [(b"connection", b"close")])

    workers[0].handler = refuse
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: e\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("timeouts", "answered"),
    # Long enough for what comes first to come, whatever else this machine does.
    [(Timeouts(first_byte=0.2), False), (Timeouts(idle=3.0), True), (Timeouts(total=4.0), True)],
)
def test_silence_ends(edge: Any, workers: Any, timeouts: Timeouts, answered: bool) -> None:
    async def silent(request: Any) -> None:
        await request.read()
        if answered:
            await request.start(200, SSE)
            await request.write(b"data: 1\n\n")
        while (await request.receive())["type"] != "http.disconnect":
            pass

    workers[0].handler = silent
    running = edge([workers[0].url], options=Options(health_path="", timeouts=timeouts))
    got = running.talk(b"GET / HTTP/1.1\r\nhost: e\r\nconnection: close\r\n\r\n")
    if answered:
        assert b"data: 1\n\n" in got
        assert b'data: {"error": {"message": ' in got
        assert b'"code": "upstream_timeout"' in got
        assert not got.endswith(b"0\r\n\r\n")
    else:
        assert got.startswith(b"HTTP/1.1 504 ")
        assert b"upstream_timeout" in got


def test_a_client_that_stops_in_its_body_gets_408(edge: Any, workers: Any) -> None:
    running = edge([workers[0].url], options=Options(health_path="", timeouts=Timeouts(idle=0.2)))
    for length in (10, 100_000):
        got = running.talk(b"POST / HTTP/1.1\r\nhost: e\r\ncontent-length: %d\r\n\r\nabc" % length)
        assert got.startswith(b"HTTP/1.1 408 "), got


def test_connections_to_a_worker_are_used_again(client: Any, edge: Any, scripted: Any) -> None:
    def patient(connection: socket.socket) -> None:
        while connection.recv(65536):
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    upstream = scripted(patient)
    running = edge([upstream.url], options=Options(health_path=""))
    assert [client.get(running.url).text for _ in range(5)] == ["ok"] * 5
    assert upstream.connections == 1


async def test_a_client_that_does_not_read_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stream that took too long because of it: it goes without the event that says so."""

    async def never(message: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(proxy, "_LAST_WORD", 0)
    async with asyncio.timeout(60):
        await proxy._last_word(never, UpstreamTimeout("too long"))
