"""``otelctx show window``, against a real server."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn

from otelctx.cli import window
from otelctx.errors import ConfigError
from otelctx.exchange.node import Node
from otelctx.serving import app
from otelctx.settings import Settings
from otelctx.testing.fake_engine import FakeEngine

SESSION = "a session/with a slash"


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    """URL of a worker that has ``SESSION``, which belongs to the API key ``k``."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    served = app(FakeEngine(window=64), node=Node(Settings()))
    server = uvicorn.Server(uvicorn.Config(served, log_config=None, lifespan="on", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    body = {"model": "fake", "messages": [{"role": "user", "content": "one two three"}]}
    body |= {"otelctx": {"session": SESSION, "mode": "append"}}
    httpx.post(
        f"{url}/v1/chat/completions", json=body, headers={"authorization": "Bearer k"}, timeout=60
    ).raise_for_status()
    yield url
    server.should_exit = True
    thread.join(60)
    listener.close()


def test_the_window_of_ones_own_session_is_shown(
    worker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTELCTX_API_KEY", "k")
    window.show(SESSION, f"{worker}/v1", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["id"] == SESSION
    held = told["window"]
    assert 0 < held["used"] < held["limit"]
    window.show(SESSION, worker, as_json=False)
    out = capsys.readouterr().out
    assert f"{held['used']} of {held['limit']} tokens, 0 evicted" in out
    assert SESSION in out


def test_somebody_elses_session_is_not_there(worker: str) -> None:
    with pytest.raises(ConfigError, match="set OTELCTX_API_KEY to its owner's key"):
        window.read(SESSION, worker, None)
    with pytest.raises(ConfigError, match="that OTELCTX_API_KEY owns"):
        window.read(SESSION, worker, "another")


def test_where_no_worker_is_it_is_said(worker: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(ConfigError, match="say where it is with --url"):
        window.read(SESSION, f"http://127.0.0.1:{port}", None)
    with pytest.raises(ConfigError, match="is no worker of otelctx: HTTP 404"):
        window.read(SESSION, f"{worker}/elsewhere", None)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, b'{"error": "Not Found"}'),
        (404, b'{"error": null}'),
        (200, b'{"window": 5}'),
        (200, b'{"window": {"used": "many", "limit": 9, "evicted": 0}}'),
        (200, b"[]"),
        (200, b"<html>"),
        (500, b'{"window": {"used": 1, "limit": 9, "evicted": 0}}'),
    ],
)
def test_what_is_no_worker_is_told_apart_whatever_it_says(
    monkeypatch: pytest.MonkeyPatch, status: int, said: bytes
) -> None:
    monkeypatch.setattr(httpx, "get", lambda where, **_: httpx.Response(status, content=said))
    with pytest.raises(ConfigError, match=f"is no worker of otelctx: HTTP {status}"):
        window.read(SESSION, "http://127.0.0.1:1", None)
