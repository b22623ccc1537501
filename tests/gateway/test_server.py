"""The server around the gateway, and the command: heads that are slow, signals, and the drain."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from otelctx.gateway import server as module
from otelctx.gateway.options import Options

UNCHECKED = Options(health_path="")


def test_a_client_that_does_not_finish_its_head_is_let_go(
    shared: Any, monkeypatch: pytest.MonkeyPatch, workers: Any
) -> None:
    monkeypatch.setattr(module, "HEAD_WITHIN", 0.2)
    for said in (b"", b"GET / HTTP/1.1\r\nhost: "):
        got = shared.talk(said)
        assert got.startswith(b"HTTP/1.1 408 ")
    assert workers[0].seen == []


def test_a_head_that_is_finished_in_time_may_have_a_slow_body_and_a_next_request(
    shared: Any, monkeypatch: pytest.MonkeyPatch, workers: Any
) -> None:
    monkeypatch.setattr(module, "HEAD_WITHIN", 2.0)
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as connection:
        for _ in range(2):
            connection.sendall(b"POST / HTTP/1.1\r\nhost: e\r\ncontent-length: 1\r\n\r\n")
            time.sleep(2.2)
            connection.sendall(b"x")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_the_head_of_a_later_request_has_to_end_too(shared: Any, monkeypatch: pytest.MonkeyPatch, workers: Any) -> None:
    monkeypatch.setattr(module, "HEAD_WITHIN", 0.5)
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: e\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /again HTTP/1.1\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")
    assert len(workers[0].seen) == 1


def test_while_it_drains_what_runs_finishes_and_nothing_new_begins(client: Any, edge: Any, workers: Any) -> None:
    import asyncio

    go = threading.Event()

    async def slow(request: Any) -> None:
        await request.start(200, [(b"content-type", b"text/event-stream")])
        await request.write(b"data: 1\n\n")
        await asyncio.to_thread(go.wait, 60)
        await request.write(b"data: 2\n\n", last=True)

    workers[0].handler = slow
    running = edge([workers[0].url], options=UNCHECKED)
    with client.stream("POST", running.url) as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"data: 1\n\n"
        running.server.handle_exit(signal.SIGTERM, None)
        with httpx.Client(trust_env=False, timeout=60) as other:
            ready = other.get(running.url + "/readyz")
            refused = other.post(running.url)
        assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        go.set()
        assert list(pieces) == [b"data: 2\n\n"]


def test_what_does_not_finish_in_time_is_cut(client: Any, edge: Any, workers: Any, eventually: Any) -> None:
    async def endless(request: Any) -> None:
        await request.start(200, [(b"content-type", b"text/event-stream")])
        await request.write(b"data: 1\n\n")
        while (await request.receive())["type"] != "http.disconnect":
            pass

    workers[0].handler = endless
    running = edge([workers[0].url], options=UNCHECKED)
    running.server._drain = 0.2
    with client.stream("POST", running.url) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        running.server.handle_exit(signal.SIGTERM, None)
        with pytest.raises(httpx.HTTPError):
            list(pieces)


def test_a_second_signal_ends_the_drain(client: Any, edge: Any, workers: Any, eventually: Any) -> None:
    running = edge([workers[0].url], options=UNCHECKED)
    running.server.handle_exit(signal.SIGTERM, None)
    assert not running.server.should_exit
    running.server.handle_exit(signal.SIGTERM, None)
    assert running.server.should_exit


@contextmanager
def command(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the URL at which it says it is."""
    with subprocess.Popen(
        [sys.executable, "-m", "otelctx.cli", "gateway", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OTEL_SDK_DISABLED": "true", **environment},
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("otelctx: ready: http://127.0.0.1:"), process.stderr and process.stderr.read()
            yield process, line.split()[2]
        finally:
            process.kill()


def test_the_command_serves_and_ends_by_itself_when_it_is_told(client: Any, workers: Any) -> None:
    with command("--upstream", workers[0].url, "--upstream", workers[1].url, "--drain", "60") as (process, url):
        assert client.get(url + "/readyz").status_code == 200
        assert client.post(url + "/x", content=b"y").text == "ok"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "--upstream"),
        (("--upstream", "ftp://x"), 1, "otelctx: --upstream 'ftp://x' is not"),
        (("--upstream", "http://x", "--load-bound", "0.5"), 2, "--load-bound"),
        (("--upstream", "http://x", "--host", "203.0.113.7"), 1, "can't listen on 203.0.113.7"),
    ],
)
def test_what_can_not_be_done_is_told(arguments: tuple[str, ...], status: int, words: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "otelctx.cli", "gateway", *arguments], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == status
    assert words in result.stderr
    assert "Traceback" not in result.stderr
