"""Servers with several processes: each is a party of its own, whichever way it has come to be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from otelctx.clients.dispatch import instrument
from otelctx.context.current import ContextKey, session
from otelctx.exchange.node import Node
from otelctx.settings import Settings
from otelctx.testing.backends import free_ports, poll

pytestmark = pytest.mark.e2e
TIER = ContextKey("network.tier", str, visibility="public")
KEYS = "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
# What is imported before the fork has used the node already, and a thread of the parent holds its locks for ever.
APP = """
import json, os, threading, warnings
from otelctx.asgi.middleware import wrap
from otelctx.context.current import current_scope
from otelctx.exchange.node import default_node

node = default_node()
first = node.boot_id
held = threading.Event()

def hold():
    with node._lock, node.links._lock, node.pending._lock:
        held.set()
        threading.Event().wait()

if os.environ.get("HOLD"):
    threading.Thread(target=hold, daemon=True).start()
    held.wait()

async def answer(scope, receive, send):
    if scope["type"] != "http":
        return
    found = current_scope()
    seen = {"pid": os.getpid(), "boot": node.boot_id, "inherited": first, "source": found.source,
            "tier": found.state.get("network.tier"), "chat": found.state.session_id}
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(seen).encode()})

app = wrap(answer)
"""
ONE_EACH = httpx.Limits(max_keepalive_connections=0)  # so that either worker may answer
SERVERS = {
    "gunicorn --preload": ("gunicorn", "--preload", "-k", "uvicorn_worker.UvicornWorker", "--graceful-timeout", "5"),
    "gunicorn": ("gunicorn", "-k", "uvicorn_worker.UvicornWorker", "--graceful-timeout", "5"),
    "uvicorn": ("uvicorn", "--lifespan", "off", "--log-level", "warning"),
}


class Server:
    """Two workers at ``url``."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], url: str) -> None:
        self.name = name
        self.process = process
        self.url = url

    def up(self, than: frozenset[int] = frozenset()) -> bool:
        """Whether two workers answer, and no one of ``than`` any more."""
        try:
            with httpx.Client(trust_env=False, limits=ONE_EACH) as plain:
                pids = {plain.get(self.url).json()["pid"] for _ in range(12)}
        except httpx.TransportError:
            return False
        return len(pids) == 2 and not pids & than


@contextmanager
def running(name: str, folder: Path) -> Iterator[Server]:
    (folder / "served.py").write_text(APP)
    (port,) = free_ports(1)
    command, *options = SERVERS[name]
    bind = ["--bind", f"127.0.0.1:{port}"] if command == "gunicorn" else ["--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "OTELCTX_KEYS": KEYS, "PYTHONPATH": str(folder)}
    if "--preload" in options:
        environment["HOLD"] = "1"
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", command, *options, *bind, "--workers", "2", "served:app"],
            env=environment,
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    server = Server(name, process, f"http://127.0.0.1:{port}/")
    try:
        try:
            poll(server.up, lambda: process.poll() is None, name, 30)
            yield server
        except BaseException as error:
            error.add_note(log.read_text(errors="replace")[-3000:])
            raise
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(params=list(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with running(request.param, tmp_path) as made:
        yield made


class Caller:
    """Asks on a connection of its own each time. ``answers`` must all be right."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = instrument(httpx.Client(trust_env=False, limits=ONE_EACH), node=Node(Settings(keys=KEYS)))
        self.answers: list[Any] = []

    def ask(self, at: int) -> None:
        tier, chat = ("gold", "silver")[at % 2], f"chat-{at % 3}"
        with session(chat), TIER.bound(tier):
            response = self.client.post(self.url, content=b"x")
        assert response.status_code == 200
        seen = response.json()
        assert (seen["source"], seen["tier"], seen["chat"]) == ("frame", tier, chat)
        self.answers.append(seen)


def test_each_worker_is_a_party_of_its_own(server: Server) -> None:
    """A boot id of its own, its own bases, and no lock that the parent's thread held at the fork."""
    caller = Caller(server.url)
    with caller.client:
        for at in range(30):
            caller.ask(at)
    boots = {seen["pid"]: seen["boot"] for seen in caller.answers}
    assert len(boots) == len(set(boots.values())) == 2
    if server.name == "gunicorn --preload":
        assert {seen["inherited"] for seen in caller.answers}.isdisjoint(boots.values())


@pytest.mark.parametrize("server", ["gunicorn --preload", "gunicorn"], indirect=True)
def test_a_graceful_restart_in_the_middle_of_traffic(server: Server) -> None:
    """No request is refused and none runs without its context, whoever serves it.

    uvicorn's old worker cuts a connection that it has accepted and read nothing from. That is between the two of them,
    and the same without us: such a request is made again.
    """
    caller = Caller(server.url)
    stop, failures = threading.Event(), []

    def traffic() -> None:
        at = 0
        while not stop.is_set():
            try:
                caller.ask(at)
            except (httpx.ReadError, httpx.RemoteProtocolError):
                continue
            except BaseException as error:
                failures.append(error)
                return
            at += 1

    asking = threading.Thread(target=traffic)
    asking.start()
    try:
        poll(lambda: len(caller.answers) > 20, asking.is_alive, "traffic", 20)
        old = frozenset(seen["pid"] for seen in caller.answers)
        server.process.send_signal(signal.SIGHUP)
        poll(lambda: server.up(old), asking.is_alive, "the new workers", 30)
        count = len(caller.answers)
        poll(lambda: len(caller.answers) > count + 20, asking.is_alive, "traffic", 20)
    finally:
        stop.set()
        asking.join()
        caller.client.close()
        if failures:
            raise failures[0]
    by_worker = Counter(seen["pid"] for seen in caller.answers)
    assert len(by_worker) == 4
    assert len({seen["boot"] for seen in caller.answers}) == 4
