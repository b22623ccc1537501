"""Every client through proxies: what counts is where a request goes, and a proxy reads only what it is meant to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from otelctx.context.current import ContextKey
from otelctx.context.scope import Scope
from otelctx.exchange.node import Node

TIER = ContextKey("clients.proxies.tier", str, visibility="public")


class Tunnel:
    """A proxy that does CONNECT, to any port of this host. Notes the heads that it gets."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                more = client.recv(65536)
                if not more:
                    client.close()
                    return
                head += more
            self.heads.append(head)
            port = int(head.split()[1].rpartition(b":")[2])
            server = socket.create_connection(("127.0.0.1", port))
            self._sockets += (client, server)
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for one, other in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=self._pump, args=(one, other)))
                self._threads[-1].start()

    @staticmethod
    def _pump(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError), one:
            while chunk := one.recv(65536):
                other.sendall(chunk)
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        socket.create_connection(self._listener.getsockname()).close()
        self._threads[0].join()
        for left in self._sockets:
            with suppress(OSError):
                left.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()


@pytest.fixture
def tunnel() -> Iterator[Tunnel]:
    made = Tunnel()
    yield made
    made.close()


def test_what_is_tunnelled_is_not_shown_to_the_proxy(
    driver: Any, secured: tuple[Any, Path], node: Callable[..., Node], chat: Scope, seen: Any, tunnel: Tunnel
) -> None:
    worker, certificate = secured
    client = driver.client(node(), proxy=tunnel.url, ca=certificate)
    TIER.set("gold")
    for _ in range(4):
        assert driver.post(client, worker.url, content=b"x").content == b"ok"
    driver.hang_up()
    assert worker.kinds() == ["full", "full", "full", "ref"]
    assert len(tunnel.heads) >= 1
    for head in tunnel.heads:
        assert head.startswith(b"CONNECT ")
        assert not any(word in head.lower() for word in (b"otelctx", b"traceparent", b"baggage"))
    span = seen.spans()[0]
    assert span.attributes["url.full"].startswith("https://localhost:")
    assert [span.attributes["http.response.status_code"] for span in seen.spans()] == [200] * 4


def test_a_proxy_of_the_environment_changes_nothing(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, worker.url)
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    client = driver.client(node(), environment=True)
    driver.post(client, "http://model.internal/v1")
    driver.post(client, "http://api.example.com/v1")
    assert [len(request.values("otelctx")) for request in worker.seen] == [1, 0]
    assert [len(request.values("traceparent")) for request in worker.seen] == [1, 1]
