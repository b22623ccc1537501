"""Each example is run as its first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from otelctx.testing.receiver import OtlpReceiver

EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = "1:QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
FRONTEND = EXAMPLES.parent / "otelctx" / "demo" / "frontend.py"


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as found:
        yield found


@pytest.fixture(scope="module")
def environment(receiver: OtlpReceiver) -> dict[str, str]:
    return os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTELCTX_KEYS": KEYS}


@pytest.fixture(scope="module")
def worker(environment: dict[str, str]) -> Iterator[str]:
    """URL of an ``otelctx serve`` with the small model."""
    process = subprocess.Popen(
        [sys.executable, "-m", "otelctx.cli", "serve", "smollm2", "--port", "0", "--window", "256", "--rows", "2"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    yield next(m[1] for line in process.stdout if (m := re.search(r"ready: .* at (http://\S+)", line)))
    process.terminate()
    assert process.wait(60) == 0
    process.stdout.close()


def run(name: str, *arguments: str, env: dict[str, str]) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.model
def test_own_loop_answers_and_refuses(environment: dict[str, str], receiver: OtlpReceiver) -> None:
    answer, refused = run("own_loop.py", "smollm2", "Say hello.", env=environment).rsplit("\n", 2)[:2]
    assert answer
    assert refused.startswith("refused: ")
    assert "maximum context length" in refused
    spans = receiver.wait_for(lambda found: sum(s.service == "own-loop" and "chat" in s.name for s in found) == 2)
    turns = [s for s in spans if s.service == "own-loop" and s.name.startswith("chat ")]
    assert [s.attributes["otelctx.outcome"] for s in turns][1] == "rejected"
    assert turns[1].has_event("otelctx.overflow")


@pytest.mark.model
def test_own_client_reads_what_came_back(environment: dict[str, str], worker: str, receiver: OtlpReceiver) -> None:
    lines = dict(
        line.split(":", 1) for line in run("own_client.py", worker, env=environment).splitlines() if ":" in line
    )
    assert lines["httpx"].strip()
    assert lines["openai"].strip()
    assert 0 < int(lines["window"].split()[0]) <= 256
    assert 0 < int(lines["tokens"].split()[0]) <= 16
    receiver.wait_for(lambda found: {"own-client", "otelctx-worker"} <= {s.service for s in found})


@pytest.mark.model
def test_the_frontend_passes_context_on(environment: dict[str, str], worker: str) -> None:
    assert (EXAMPLES / "frontend.py").resolve() == FRONTEND
    assert len(FRONTEND.read_text().splitlines()) <= 60
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "frontend:app", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"WORKER_URL": worker},
    )
    assert process.stderr is not None
    try:
        url = next(m[1] for line in process.stderr if (m := re.search(r"running on (http://\S+)", line)))
        body = {"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4}
        with httpx.Client(base_url=url, timeout=60) as client:
            answer = client.post("/v1/chat/completions", json=body)
            assert (answer.status_code, answer.json()["usage"]["completion_tokens"] > 0) == (200, True)
            with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as stream:
                assert stream.read().endswith(b"data: [DONE]\n\n")
            too_long = client.post(
                "/v1/chat/completions", json=body | {"messages": [{"role": "user", "content": "x " * 999}]}
            )
            assert (too_long.status_code, too_long.json()["error"]["code"]) == (400, "context_length_exceeded")
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()
