"""Keys that rotate under load, in two real processes with a mounted file each: no request and no context is lost."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

OLD, NEW = (f"{n}:" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
# What it answers: whether it has its caller's context, and by which key the frame and the ack are signed.
WORKER = """
import json, logging, sys
import uvicorn
from otelctx.asgi.middleware import ContextMiddleware
from otelctx.context.current import ContextKey, current_scope
from otelctx.delta.codec import from_header, split_mac

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
TIER = ContextKey("rotation.e2e.tier", str)

async def app(scope, receive, send):
    here = current_scope()
    found = {"tier": TIER.get(), "source": here.source, "incomplete": here.incomplete}
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(found).encode()})

server = uvicorn.Server(uvicorn.Config(
    ContextMiddleware(app), port=0, log_config=None, access_log=False, ws="none", lifespan="off"))
started = server.startup
async def startup(sockets=None):
    await started(sockets)
    print("ready:", "http://127.0.0.1:%d" % server.servers[0].sockets[0].getsockname()[1], flush=True)
server.startup = startup
server.run()
"""
# Asks without a pause until it is told to stop, each time with another value, and counts what became of it. Upon a
# SIGUSR1 it says when a hundred more requests have had their answers.
CLIENT = """
import collections, json, logging, signal, sys
import httpx
from otelctx.clients.dispatch import instrument
from otelctx.context.current import ContextKey, session
from otelctx.delta.codec import from_header, split_mac

logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
logging.getLogger("otelctx.exchange").setLevel(logging.INFO)
TIER = ContextKey("rotation.e2e.tier", str)
going, awaited, counts = True, None, collections.Counter()

def stop(*_):
    global going
    going = False

def count(*_):
    global awaited
    awaited = counts["asked"] + 100

def key(line):
    mac = split_mac(from_header(line))[1]
    return "unsigned" if mac is None else "key %d" % mac[0]

class Wire(httpx.HTTPTransport):
    def handle_request(self, request):
        counts["sent by " + key(request.headers["otelctx"])] += 1
        response = super().handle_request(request)
        if "otelctx-ack" in response.headers:
            counts["acked by " + key(response.headers["otelctx-ack"])] += 1
        return response

signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGUSR1, count)
print("ready: http://nowhere", flush=True)
with httpx.Client(transport=Wire(), trust_env=False, timeout=60) as plain, session("chat-1"):
    client = instrument(plain)
    while going:
        if counts["asked"] == awaited:
            print("a hundred more", flush=True)
        counts["asked"] += 1
        TIER.set(str(counts["asked"] // 3))
        try:
            found = client.post(sys.argv[1], content=b"x").raise_for_status().json()
        except Exception as error:
            counts["failed: %r" % error] += 1
            continue
        if found == {"tier": TIER.get(), "source": "frame", "incomplete": False}:
            counts["whole"] += 1
        elif found == {"tier": None, "source": "none", "incomplete": False}:
            counts["absent"] += 1
        else:
            counts["wrong: %r" % found] += 1
print(json.dumps(counts), flush=True)
"""


class Process:
    """A child that watches the file ``keys``, as Kubernetes would mount it."""

    def __init__(self, folder: Path, script: str, *arguments: str) -> None:
        self.folder = folder
        self._versions = 0
        folder.mkdir()
        self.write(OLD)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OTELCTX_"))}
        self._child = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**clean, "OTELCTX_KEYS_FILE": str(folder / "keys"), "OTEL_SDK_DISABLED": "true"},
        )
        self.url = self.line("ready:").split()[-1]

    def write(self, *keys: str) -> None:
        """Replace the file by changing a link, in one step."""
        self._versions += 1
        version = self.folder / f"..{self._versions}"
        version.mkdir()
        (version / "keys").write_text("\n".join(keys))
        (self.folder / "next").symlink_to(version.name)
        os.replace(self.folder / "next", self.folder / "..data")
        if self._versions == 1:
            (self.folder / "keys").symlink_to("..data/keys")

    def turn(self, *keys: str) -> None:
        """Replace the file, and wait until the process says that it uses the keys."""
        self.write(*keys)
        ids = [key.partition(":")[0] for key in keys]
        assert self.line("keys in use:") == f"keys in use: {', '.join(ids)}; {ids[0]} signs"

    def line(self, start: str) -> str:
        """The next line of its output that begins so. A process that has not said it within a minute is killed."""
        assert self._child.stdout is not None
        deadline = threading.Timer(60, self._child.kill)
        deadline.start()
        try:
            for line in self._child.stdout:
                if line.startswith(start):
                    return line.strip()
        finally:
            deadline.cancel()
        raise AssertionError(f"the process has ended without a line {start!r}")

    def hundred(self) -> None:
        """Wait until a hundred more requests of a client's have been answered."""
        self._child.send_signal(signal.SIGUSR1)
        self.line("a hundred more")

    def counts(self) -> dict[str, int]:
        """End it; what a client has counted."""
        self._child.send_signal(signal.SIGTERM)
        found: dict[str, int] = json.loads(self.line("{"))
        return found

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Process, Process]]:
    """A worker, and a client that has it under load."""
    with ExitStack() as stack:
        worker = Process(tmp_path / "worker", WORKER)
        stack.callback(worker.close)
        client = Process(tmp_path / "client", CLIENT, worker.url)
        stack.callback(client.close)
        client.hundred()
        yield worker, client


def test_in_the_documented_order_nothing_is_lost(pair: tuple[Process, Process]) -> None:
    for keys in ((OLD, NEW), (NEW, OLD), (NEW,)):
        for process in pair:
            process.turn(*keys)
            pair[1].hundred()
    counts = pair[1].counts()
    assert counts["whole"] == counts["asked"] > 500
    assert not [what for what in counts if what.startswith(("failed", "wrong", "absent")) or "unsigned" in what]
    assert {"sent by key 1", "sent by key 2", "acked by key 1", "acked by key 2"} <= counts.keys()


def test_in_the_wrong_order_context_is_absent_and_never_wrong(pair: tuple[Process, Process]) -> None:
    worker, client = pair
    client.turn(NEW)  # a signer that nobody knows yet
    client.hundred()
    worker.turn(OLD, NEW)
    client.hundred()
    counts = client.counts()
    assert counts["absent"] > 0
    assert counts["whole"] + counts["absent"] == counts["asked"], "no request fails, and no state is another one"
    assert not any("unsigned" in what for what in counts)


# what is started by the command line


@contextmanager
def hangups() -> Iterator[None]:
    """A child that is started here gets them as it would from a shell, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def gateway(tmp_path: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OTELCTX_"))}
    command = [sys.executable, "-m", "otelctx.cli", "gateway", "--port", "0", "--upstream", "http://127.0.0.1:9"]
    with (tmp_path / "stderr").open("w") as errors:
        with hangups():
            child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**clean, "OTEL_SDK_DISABLED": "true", **environment},
            )
        try:
            assert child.stdout is not None
            assert "ready" in child.stdout.readline()
            yield child
        finally:
            child.kill()
            child.communicate()


def test_a_hangup_has_the_keys_read_again_where_there_is_a_file(tmp_path: Path, eventually: Any) -> None:
    """Also one that looks unchanged, which is not taken over without a hangup."""
    keys, said = tmp_path / "keys", tmp_path / "stderr"
    keys.write_text(OLD)
    with gateway(tmp_path, OTELCTX_KEYS_FILE=str(keys)) as child:
        keys.write_text(f"{OLD}\n{NEW}")
        eventually(lambda: "keys in use: 1, 2; 1 signs" in said.read_text())  # it has been looked at
        before = keys.stat()
        with keys.open("r+") as same:
            same.write(f"{NEW}\n{OLD}")
            same.flush()
            os.utime(same.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
        child.send_signal(signal.SIGHUP)
        eventually(lambda: "keys in use: 2, 1; 2 signs" in said.read_text())
        assert child.poll() is None


def test_a_hangup_without_a_file_ends_the_process_as_ever(tmp_path: Path) -> None:
    with gateway(tmp_path, OTELCTX_KEYS=OLD) as child:
        child.send_signal(signal.SIGHUP)
        assert child.wait(60) == -signal.SIGHUP
