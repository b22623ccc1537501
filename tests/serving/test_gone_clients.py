"""Clients that go over real connections: whenever and however they go, their turn was never there."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.testing import Captured

RESET = struct.pack("ii", 1, 0)  # on, at once: what is unsent is dropped, the peer gets a reset


class Gate:
    """Holds the engine's thread before its next step, until it is opened."""

    def __init__(self, engine: TransformersEngine) -> None:
        self._step = engine._runner.step
        self.closed_at: int | None = None  # tokens that a row holds
        self._engine = engine
        self._pass = threading.Event()
        self.reached = threading.Event()
        engine._runner.step = self  # type: ignore[assignment,method-assign]

    def close_at(self, tokens: int) -> None:
        self._pass.clear()
        self.reached.clear()
        self.closed_at = tokens

    def open(self) -> None:
        self.closed_at = None
        self._pass.set()

    def __call__(self, work: Any) -> Any:
        if self.closed_at is not None and max(self._engine._runner.kv.lengths) >= self.closed_at:
            self.reached.set()
            assert self._pass.wait(60)
        return self._step(work)


@dataclass
class Served:
    engine: TransformersEngine
    gate: Gate
    url: str

    def connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)))

    def post(self, text: str, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/chat/completions", json=body(text, **options), timeout=60)

    def at_rest(self) -> bool:
        stats = self.engine.stats()
        return (stats.rows_busy, stats.leases, stats.queued, stats.active, len(self.engine._turns)) == (0,) * 5


def body(text: str, *, session: str | None = "s", tokens: int = 8, stream: bool = False) -> dict[str, Any]:
    extra = {"otelctx": {"session": session, "mode": "append"}} if session else {}
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": stream} | extra


def raw(value: dict[str, Any], cut: int | None = None) -> bytes:
    content = json.dumps(value).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-length: {len(content)}\r\n"
    return (head + "content-type: application/json\r\n\r\n").encode() + content[:cut]


def go(connection: socket.socket, how: str) -> None:
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    for _ in range(12_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come about in a minute")


@pytest.fixture
def worker(served: Any, tiny_model: Path) -> Iterator[Served]:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    engine = TransformersEngine(model, tokenizer, window=512, rows=1, name="tiny", eos_ids=())
    gate = Gate(engine)
    with served(engine) as url:
        yield Served(engine, gate, url)
        gate.open()
        until(Served(engine, gate, url).at_rest)


def outcomes(seen: Captured) -> list[str]:
    return [span.attributes["otelctx.outcome"] for span in seen.spans if span.name == "chat tiny"]


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_a_client_that_goes_takes_its_turn_with_it(
    worker: Served, otelctx_capture: Captured, phase: str, stream: bool, how: str
) -> None:
    """Row, session and memory are back, the outcome is told once, and the session goes on as if nothing had been."""
    worker.post("hello", session="s")
    reference = worker.post("hello", session="r").json(), worker.post("and now", session="r").json()
    before = worker.engine._store.get("s", "anonymous").window.tokens().tolist()
    pages = worker.engine.stats().pages_used
    ahead = None
    if phase == "queue":
        worker.gate.close_at(1)
        ahead = threading.Thread(target=worker.post, args=("ahead",), kwargs={"session": None})
        ahead.start()
        assert worker.gate.reached.wait(60)
    else:
        worker.gate.close_at(len(before) + 100 if phase == "decode" else 1)
    text = "tell me " * 8
    connection = worker.connect()
    connection.sendall(raw(body(text, tokens=300, stream=stream)))
    if phase != "queue":
        assert worker.gate.reached.wait(60)
    until(lambda: worker.engine.stats().leases == 1)
    if stream and phase == "decode":
        assert b"data: {" in connection.recv(4000)
    go(connection, how)
    until(lambda: not [job for job in worker.engine._turns if not job._settling and job._lease is not None])
    worker.gate.open()
    if ahead is not None:
        ahead.join(60)
    until(worker.at_rest)
    assert worker.engine._store.get("s", "anonymous").window.tokens().tolist() == before
    assert worker.engine.stats().pages_used == pages
    again = worker.post("and now", session="s").json()
    assert again["choices"] == reference[1]["choices"]
    assert again["otelctx"]["window"]["used"] == reference[1]["otelctx"]["window"]["used"]
    assert sorted(outcomes(otelctx_capture)) == ["cancelled"] + ["length"] * (4 if ahead is None else 5)
    assert otelctx_capture.metric("otelctx.requests", otelctx__outcome="cancelled").value == 1


@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_client_that_goes_in_the_middle_of_its_body_was_no_request(
    worker: Served, otelctx_capture: Captured, how: str
) -> None:
    connection = worker.connect()
    connection.sendall(raw(body("hello", session="s"), cut=40))
    until(lambda: worker.engine.ready)
    go(connection, how)
    answer = worker.post("hello", session="s")
    assert answer.json()["otelctx"]["window"]["version"] == 1
    assert outcomes(otelctx_capture) == ["length"]


def test_a_reader_that_does_not_read_holds_up_nobody(served: Any, tiny_model: Path) -> None:
    """What it has not read is bounded, and its row is free at the end of its answer; others get all their tokens
    meanwhile. When it reads at last, nothing is missing."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    engine = TransformersEngine(model, tokenizer, window=512, rows=2, name="tiny", eos_ids=())
    with served(engine) as url:
        worker = Served(engine, Gate(engine), url)
        expected = worker.post("slow", session=None, tokens=450).json()["choices"][0]["message"]["content"]
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        host, port = url.removeprefix("http://").split(":")
        slow.connect((host, int(port)))
        slow.sendall(raw(body("slow", session="s", tokens=450, stream=True)))
        until(lambda: engine.stats().leases == 1)
        for n in range(3):
            answer = worker.post(f"quick {n}", session=None, tokens=40).json()
            assert answer["usage"]["completion_tokens"] == 40
        until(lambda: engine.stats().active == 0)
        held = sum(len(text) for turn in engine._turns for text in turn._channel._text)
        assert held <= 4 * 450
        found = b""
        while b"[DONE]" not in found:
            found += slow.recv(65536)
        slow.close()
        parts = [json.loads(line[6:]) for line in found.decode().splitlines() if line.startswith("data: {")]
        deltas = [part["choices"][0]["delta"].get("content") or "" for part in parts if part["choices"]]
        assert "".join(deltas) == expected
        until(worker.at_rest)
        assert (engine.stats().sessions, engine._store.get("s", "anonymous").turns) == (1, 1)
