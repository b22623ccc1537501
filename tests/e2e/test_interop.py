"""otelctx/1 in Go and JavaScript, each with its own protobuf runtime, written from docs/wire-format.md.

They agree with every recording, and converse with a Python worker behind nginx, and a Python client with them.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from google.protobuf import descriptor_pb2
from google.protobuf.compiler import plugin_pb2

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.clients.dispatch import instrument
from otelctx.context.current import ContextKey, UpKey, current_scope, session
from otelctx.context.state import Window
from otelctx.delta.v1 import otelctx_pb2 as pb
from otelctx.exchange.node import Node
from otelctx.settings import Settings

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "interop"
VECTORS = ROOT / "proto" / "vectors"
KEY = "1:" + base64.b64encode(bytes(range(32))).decode()
STRANGERS_KEY = "1:" + base64.b64encode(bytes(32)).decode()
FULL, REF, DELTA = "FULL", "REF", "DELTA"

TENANT = ContextKey("tenant.id", str)
TIER = ContextKey("user.tier", str)
APP_TIER = ContextKey("app.tier", str)
APP_NUMBER = ContextKey("app.number", int)
SPENT = UpKey("usage.tokens.output", int, rule="sum")
TURN = UpKey("session.turn", int, rule="max")


# --- the programs ---


@dataclass
class Program:
    """A program of one language: ``command`` starts it, in an environment of its own."""

    language: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str) -> list[Any]:
        """The JSON lines that it prints. Fails with what it complains of."""
        ran = subprocess.run(
            [*self.command, *arguments], env={**os.environ, **self.env}, capture_output=True, text=True, timeout=600
        )
        assert not ran.stderr, ran.stderr[-4000:]
        return [json.loads(line) for line in ran.stdout.splitlines()]

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The URL of its server."""
        process = subprocess.Popen(
            [*self.command, "serve", KEY], env={**os.environ, **self.env}, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()
            process.communicate(timeout=60)


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"NO TOOL: {name} is not installed")
    return found


def _make(command: list[Any], folder: Path, what: str, **options: Any) -> bytes:
    ran = subprocess.run(command, cwd=folder, capture_output=True, timeout=800, **options)
    if ran.returncode:
        pytest.skip(f"NO PROGRAM: {what}: {ran.stderr.decode(errors='replace')[-2000:]}")
    return ran.stdout


def _go(folder: Path) -> Program:
    """The schema's code is generated here, so that it can't be an old one."""
    go = _tool("go")
    shutil.copytree(PROGRAMS / "go", folder, dirs_exist_ok=True)
    generator, program = folder / "protoc-gen-go", folder / "interop"
    module = "google.golang.org/protobuf/cmd/protoc-gen-go"
    _make([go, "build", "-mod=readonly", "-o", generator, module], folder, "protoc-gen-go can't be built")
    parameter = f"M{pb.DESCRIPTOR.name}=otelctx.example/interop/wire"
    asked = plugin_pb2.CodeGeneratorRequest(file_to_generate=[pb.DESCRIPTOR.name], parameter=parameter)
    pb.DESCRIPTOR.CopyToProto(asked.proto_file.add())
    made = _make([generator], folder, "no code was generated", input=asked.SerializeToString())
    (code,) = plugin_pb2.CodeGeneratorResponse.FromString(made).file
    (folder / "wire").mkdir()
    (folder / "wire" / "otelctx.pb.go").write_text(code.content)
    built = subprocess.run(
        [go, "build", "-mod=readonly", "-o", program, "."], cwd=folder, capture_output=True, text=True, timeout=800
    )
    assert built.returncode == 0, built.stderr[-4000:]
    return Program("go", [str(program)])


def _node(folder: Path) -> Program:
    node, npm = _tool("node"), _tool("npm")
    shutil.copytree(PROGRAMS / "node", folder, dirs_exist_ok=True)
    _make([npm, "ci", "--no-fund", "--no-audit"], folder, "npm could not install what package-lock.json lists")
    schema = descriptor_pb2.FileDescriptorSet()
    pb.DESCRIPTOR.CopyToProto(schema.file.add())
    (folder / "wire.binpb").write_bytes(schema.SerializeToString())
    return Program("node", [node, str(folder / "main.mjs")], {"WIRE": str(folder / "wire.binpb")})


@pytest.fixture(scope="session", params=[_go, _node], ids=["go", "node"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    made: Program = request.param(tmp_path_factory.mktemp("interop"))
    return made


# --- recordings ---


def test_another_language_agrees_with_every_recording(program: Program) -> None:
    """On every root, MAC and outcome; and, with the runtimes that are locked here, on every byte."""
    (report,) = program.run("check", str(VECTORS))
    assert report["differs"] == []
    recorded = {path.stem: json.loads(path.read_text()) for path in VECTORS.glob("*.json")}
    assert report["agreed"] == {
        "states": len(recorded["states"]["states"]),
        "frames": len(recorded["frames"]["frames"]),
        "acks": sum(len(recorded["acks"][part]) for part in ("acks", "shortened", "ignored")),
        "macs": sum(len(recorded["macs"][part]) for part in ("macs", "accepted")),
        "headers": len(recorded["headers"]["headers"]),
        "outcomes": len(recorded["outcomes"]["cases"]),
        "conversations": sum(len(c["exchanges"]) for c in recorded["conversations"]["conversations"]),
    }
    assert report["same_bytes"] == report["bodies"] > 0


def test_a_recording_that_is_wrong_is_found(program: Program, tmp_path: Path) -> None:
    """The programs compute what they compare: a changed digit in each file does not pass."""
    for path in VECTORS.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    frames = json.loads((VECTORS / "frames.json").read_text())
    frames["frames"][0]["state"].append({"key": "more", "type": "int", "value": "1"})
    (tmp_path / "frames.json").write_text(json.dumps(frames))
    outcomes = json.loads((VECTORS / "outcomes.json").read_text())
    outcomes["cases"][0]["outcome"] = "ignored"
    (tmp_path / "outcomes.json").write_text(json.dumps(outcomes))
    (report,) = program.run("check", str(tmp_path))
    assert [line.partition(":")[0] for line in report["differs"]] == ["frames", "outcomes"]


# --- conversations ---


class Worker:
    """A Python application that says what it sees, spends three tokens a turn, and reports its window."""

    def __init__(self) -> None:
        self.turns = 0
        self.refused = 0
        self._restart()

    def _restart(self) -> None:
        """As a process that has just started: no base, another boot id."""
        self._entry = ContextMiddleware(self._app, node=Node(Settings(keys=KEY)))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def watched(message: Any) -> None:
            self.refused += message.get("status") == 412
            await send(message)

        await self._entry(scope, receive, watched)
        if scope["path"] == "/restart":
            self._restart()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.turns += 1
        SPENT.record(3)
        TURN.record(self.turns)
        here = current_scope()
        assert here is not None
        here.report(Window(used=100 * self.turns, limit=2048, evicted=2**40, level=1, generation=2, version=self.turns))
        body = f"{APP_TIER.get()} {APP_NUMBER.get()} {TENANT.get()} {here.source}"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body.encode()})

    @contextmanager
    def serving(self) -> Iterator[int]:
        config = uvicorn.Config(self, port=0, lifespan="off", ws="none", log_config=None, timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        sockets = [config.bind_socket()]
        sockets[0].listen()  # nginx may ask before uvicorn has come so far
        thread = threading.Thread(target=server.run, kwargs={"sockets": sockets})
        thread.start()
        try:
            yield sockets[0].getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


GOLD, SILVER, BARE = "gold None acme frame", "silver -7 acme frame", "None -7 None frame"


def test_a_client_of_another_language_converses_with_a_python_worker_behind_nginx(
    program: Program, start_nginx: Callable[[str], Any]
) -> None:
    """FULL, REF, DELTA as acks allow; a refusal and one FULL after a restart; up values and window in signed acks."""
    worker = Worker()
    with worker.serving() as port:
        nginx = start_nginx(f"location / {{ proxy_pass http://127.0.0.1:{port}; }}")
        said = program.run("converse", nginx.url, KEY)
    assert [exchange["kinds"] for exchange in said] == [
        *[[FULL]] * 3, [REF], [DELTA], [REF], [DELTA], [REF], [REF, FULL], [REF]
    ]  # fmt: skip
    assert [exchange["body"] for exchange in said] == [GOLD] * 4 + [SILVER] * 2 + [BARE] * 2 + [SILVER] * 2
    assert {(exchange["status"], exchange["ack"], exchange["held"]) for exchange in said} == {(200, "ACK", "PROCESS")}
    assert [exchange["up"] for exchange in said] == [
        {"session.turn": turn, "usage.tokens.output": 3} for turn in range(1, 11)
    ]
    assert [exchange["window"] for exchange in said] == [[100 * t, 2048, 2**40, 1, 2, t] for t in range(1, 11)]
    assert said[3]["characters"] == 58, "a REF with MAC"
    assert worker.refused == 1
    assert worker.turns == 10, "a refused request does not reach the application"


def test_a_stranger_with_another_key_is_not_believed_and_gets_no_ack(
    program: Program, start_nginx: Callable[[str], Any]
) -> None:
    worker = Worker()
    with worker.serving() as port:
        nginx = start_nginx(f"location / {{ proxy_pass http://127.0.0.1:{port}; }}")
        said = program.run("converse", nginx.url, STRANGERS_KEY)
    assert {(exchange["body"], exchange["ack"]) for exchange in said} == {("None None None none", "")}
    assert [exchange["kinds"] for exchange in said] == [[FULL]] * 10


def test_a_python_client_converses_with_a_server_of_another_language(program: Program) -> None:
    """Its acks are signed, so they count: REF after three, DELTA, and a refused one repeated with FULL."""
    with program.serving() as url, httpx.Client(trust_env=False, timeout=60) as plain, session("py-1"):
        client = instrument(httpx.Client(trust_env=False, timeout=60), node=Node(Settings(keys=KEY)))
        answers = []
        with client, TENANT.bound("acme"), TIER.bound("gold"):
            answers += [client.post(url, content=b"x") for _ in range(4)]
            with TIER.bound("silver"):
                answers += [client.post(url, content=b"x") for _ in range(2)]
                plain.get(f"{url}/restart")
                answers += [client.post(url, content=b"x") for _ in range(2)]
        here = current_scope()
        assert here is not None
        spent, turn, window = SPENT.get(), TURN.get(), here.window
    assert [answer.headers["x-kind"] for answer in answers] == [FULL, FULL, FULL, REF, DELTA, REF, FULL, REF]
    assert [answer.headers["x-outcome"] for answer in answers] == ["accepted"] * 8
    assert [answer.text for answer in answers] == ["gold"] * 4 + ["silver"] * 4
    assert (spent, turn) == (8 * 3, 8), "each increment once"
    assert window == Window(used=800, limit=2048, version=8)


def test_a_server_of_another_language_does_not_answer_a_stranger(program: Program) -> None:
    with program.serving() as url, session("py-2"), TIER.bound("gold"):
        client = instrument(httpx.Client(trust_env=False, timeout=60), node=Node(Settings(keys=STRANGERS_KEY)))
        with client:
            answer = client.post(url, content=b"x")
    assert answer.headers["x-outcome"] == "ignored"
    assert "otelctx-ack" not in answer.headers
    assert answer.text == ""
