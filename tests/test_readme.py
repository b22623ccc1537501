"""Every block of the README is run here, as its reader would run it. A block that nobody runs fails the last test."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import select
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import otelctx
from otelctx.exchange import node as nodes
from otelctx.inference.loader import load
from otelctx.policy.trust import Keyring
from otelctx.settings import Settings
from otelctx.testing import OtlpReceiver

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PYTHON = {code.splitlines()[0].removeprefix("# "): code for kind, code in BLOCKS if kind == "python"}
COMMANDS = [line for kind, code in BLOCKS if kind == "console" for line in code.splitlines()]
KEYS = "1:" + base64.b64encode(bytes(range(32))).decode()

RUN = {"app.py", "ask.py", "own_loop.py"}
RUN_COMMANDS = {
    "make demo",
    'export OTELCTX_KEYS="1:$(openssl rand -base64 32)"',
    "pip install 'otelctx[serve,cli]'",
    "otelctx serve smollm2 --port 8000 --window 4096",
    "otelctx gateway --upstream http://127.0.0.1:8000 --port 8080",
}


@contextmanager
def running(command: list[str], ready: str, env: dict[str, str], cwd: Path) -> Iterator[str]:
    """A server process; yields what the one group of ``ready`` matched in its output."""
    process = subprocess.Popen(
        command, cwd=cwd, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        seen, deadline = "", time.monotonic() + 300
        while not (match := re.search(ready, seen)):
            assert process.poll() is None, seen
            assert time.monotonic() < deadline, seen
            if select.select([process.stdout], [], [], 1)[0]:
                seen += process.stdout.readline()
        yield match[1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture
def signed() -> Iterator[None]:
    """This process signs with the key that the servers under test have."""
    nodes.set_default_node(nodes.Node(Settings(keys=KEYS)))
    yield
    nodes.set_default_node(None)


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running_receiver:
        yield running_receiver


def namespace(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(compile(PYTHON[name], name, "exec"), found)
    return found


def environment(receiver: OtlpReceiver) -> dict[str, str]:
    return {"OTELCTX_KEYS": KEYS, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}


def test_the_app_sees_its_callers_context_and_traces(receiver: OtlpReceiver, tmp_path: Path, signed: None) -> None:
    (tmp_path / "app.py").write_text(PYTHON["app.py"])
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0"]
    with running(command, r"running on (http://[\d.:]+)", environment(receiver), tmp_path) as url:
        client = otelctx.instrument(httpx.Client(timeout=60))
        with client, otelctx.ContextKey("user.tier", str).bound("gold"):
            assert client.get(f"{url}/tier").json() == {"tier": "gold"}
        assert httpx.get(f"{url}/tier", timeout=60).json() == {"tier": "free"}
    spans = receiver.wait_for(lambda spans: sum(s.service == "chat-api" for s in spans) == 2)
    assert {s.name for s in spans if s.service == "chat-api"} == {"GET /tier"}


@pytest.mark.model
def test_the_client_reads_what_came_back_from_the_served_model(
    receiver: OtlpReceiver, tmp_path: Path, signed: None
) -> None:
    (line,) = [c for c in COMMANDS if c.startswith("otelctx serve")]
    _, *arguments = shlex.split(line.replace("--port 8000", "--port 0"))
    command = [sys.executable, "-u", "-m", "otelctx.cli", *arguments]
    with running(command, r"ready: .* at (http://[\d.:]+)/v1", environment(receiver), tmp_path) as url:
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_completion_tokens": 8}
        model = httpx.get(f"{url}/v1/models", timeout=60).json()["data"][0]["id"]
        spent, used = asyncio.run(namespace("ask.py")["ask"](url, body | {"model": model}))
        assert spent is not None
        assert 1 <= spent <= 8
        assert used is not None
        assert used > spent
        through_the_edge(url, model, receiver, tmp_path)


def through_the_edge(worker: str, model: str, receiver: OtlpReceiver, folder: Path) -> None:
    """Two turns of a session that the edge has minted."""
    (line,) = [c for c in COMMANDS if c.startswith("otelctx gateway")]
    _, *arguments = shlex.split(line.replace("http://127.0.0.1:8000", worker).replace("--port 8080", "--port 0"))
    command = [sys.executable, "-u", "-m", "otelctx.cli", *arguments]
    with running(command, r"ready: (http://[\d.:]+) in front", environment(receiver), folder) as url:
        body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_completion_tokens": 4}
        first = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        assert first.status_code == 200, first.text
        session = first.headers["x-otelctx-session"]
        headers, own = {"x-otelctx-session": session}, {"otelctx": {"session": session, "mode": "append"}}
        for turn in (1, 2):
            answer = httpx.post(f"{url}/v1/chat/completions", json=body | own, headers=headers, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.json()["otelctx"]["window"]["version"] == turn


@pytest.mark.model
def test_a_loop_of_ones_own_is_guarded_and_observed(otelctx_capture: Any) -> None:
    tokenizer = load("smollm2", cache_dir=Settings.load().cache_dir).tokenizer
    answer = namespace("own_loop.py")["answer"]
    messages = [{"role": "user", "content": "Say hello."}]
    assert answer(tokenizer, lambda ids: ids[:5], messages)
    assert otelctx_capture.span("chat mine").attributes["otelctx.outcome"] == "completed"
    with pytest.raises(otelctx.OtelctxError, match="maximum context length is 512"):
        answer(tokenizer, lambda ids: ids[:5], [{"role": "user", "content": "word " * 600}])


def test_the_key_that_the_readme_makes_is_a_key() -> None:
    (line,) = [c for c in COMMANDS if c.startswith("export")]
    done = subprocess.run(
        ["bash", "-c", f'{line}; printf %s "$OTELCTX_KEYS"'], capture_output=True, text=True, check=True
    )
    assert Keyring.parse(done.stdout)


def test_what_the_readme_installs_and_makes_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (line,) = [c for c in COMMANDS if c.startswith("pip install")]
    names = re.findall(r"\[(.*)\]", line)[0].split(",")
    assert set(names) <= set(extras)
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake (\w+)", README)) <= targets
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link


def test_every_block_is_run_by_a_test() -> None:
    """``make demo`` is run, with what it prints, by tests/demo."""
    assert {kind for kind, _ in BLOCKS} == {"python", "console"}
    assert set(PYTHON) == RUN
    assert set(COMMANDS) == RUN_COMMANDS
