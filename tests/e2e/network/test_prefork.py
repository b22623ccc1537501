"""Servers with several processes: each is a party of its own, whichever way it has come to be."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from otelctx.clients.dispatch import instrument
from otelctx.context.current import ContextKey, session
from otelctx.exchange.node import Node
from otelctx.settings import Settings
from otelctx.testing.backends import poll

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
# A worker on a busy machine may take long, and is not to be taken for hung meanwhile.
PATIENT = ("--graceful-timeout", "60", "--timeout", "120")
SERVERS = {
    "gunicorn --preload": ("gunicorn", "--preload", "-k", "uvicorn_worker.UvicornWorker", *PATIENT),
    "gunicorn": ("gunicorn", "-k", "uvicorn_worker.UvicornWorker", *PATIENT),
    "uvicorn": ("uvicorn", "--lifespan", "off", "--log-level", "warning", "--timeout-worker-healthcheck", "120"),
}


class Server:
    """Two workers at ``url``."""

    def __init__(self, name: str, command: Any) -> None:
        self.name = name
        self.command = command
        self.url = f"{command.url}/"

    def up(self, than: frozenset[int] = frozenset()) -> bool:
        """Whether two workers answer, and no one of ``than`` any more."""
        try:
            with httpx.Client(trust_env=False, timeout=60, limits=ONE_EACH) as plain:
                pids = {plain.get(self.url).json()["pid"] for _ in range(12)}
        except httpx.TransportError:
            return False
        return len(pids) == 2 and not pids & than

    def hang_up(self) -> None:
        os.kill(self.command.pid, signal.SIGHUP)


@pytest.fixture(params=list(SERVERS))
def server(request: pytest.FixtureRequest, serving: Any, tmp_path: Path) -> Iterator[Server]:
    name = request.param
    program, *options = SERVERS[name]
    (tmp_path / "served.py").write_text(APP)
    environment = {"OTELCTX_KEYS": KEYS, "PYTHONPATH": str(tmp_path)}
    if "--preload" in options:
        environment["HOLD"] = "1"

    def command(port: int) -> list[str]:
        bind = ["--bind", f"127.0.0.1:{port}"] if program == "gunicorn" else ["--port", str(port)]
        return [sys.executable, "-m", program, *options, *bind, "--workers", "2", "served:app"]

    with serving(tmp_path, command, lambda url: environment, lambda made: Server(name, made).up()) as made:
        yield Server(name, made)


class Caller:
    """Asks on a connection of its own each time. ``answers`` must all be right."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = instrument(
            httpx.Client(trust_env=False, timeout=60, limits=ONE_EACH), node=Node(Settings(keys=KEYS))
        )
        self.answers: list[Any] = []

    def pids(self) -> frozenset[int]:
        """Of those that have answered."""
        return frozenset(seen["pid"] for seen in self.answers)

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
        for at in range(2000):  # which of them takes a connection is the system's choice
            caller.ask(at)
            if at >= 30 and len(caller.pids()) == 2:
                break
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
        poll(lambda: len(caller.answers) > 20 and len(caller.pids()) == 2, asking.is_alive, "traffic")
        old = caller.pids()
        server.hang_up()
        poll(lambda: server.up(old), asking.is_alive, "the new workers")
        count = len(caller.answers)
        poll(lambda: len(caller.answers) > count + 20 and len(caller.pids()) == 4, asking.is_alive, "traffic")
    finally:
        stop.set()
        asking.join()
        caller.client.close()
        if failures:
            raise failures[0]
    by_worker = Counter(seen["pid"] for seen in caller.answers)
    assert len(by_worker) == 4
    assert len({seen["boot"] for seen in caller.answers}) == 4
