"""A worker of no more use answers what is in flight, says why, and ends for its supervisor to start another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

# A real worker, all of whose forwards fail after the twentieth.
WORKER = """
import sys, torch
from otelctx.inference import runner
step, calls = runner.Runner.step, []
def lost(self, work):
    calls.append(work)
    if len(calls) > 20:
        raise {error}
    return step(self, work)
runner.Runner.step = lost
sys.argv = ["otelctx", "serve", sys.argv[1], "--port", "0", "--window", "128", "--name", "tiny", "--drain", "5"]
from otelctx.cli import main
main()
"""


LOST = 'torch.AcceleratorError("CUDA error: device-side assert triggered\\nCUDA kernel errors might be …")'
BROKEN = 'ValueError("every shape is wrong")'


@pytest.mark.parametrize(
    ("error", "stream", "words"),
    [
        (LOST, False, ("the device is lost", "device-side assert triggered")),
        (LOST, True, ("the device is lost", "device-side assert triggered")),
        (BROKEN, False, ("the engine is broken", "every shape is wrong")),
    ],
)
def test_a_worker_that_is_of_no_use_any_more_ends_and_says_why(
    tiny_model: Path, error: str, stream: bool, words: tuple[str, str]
) -> None:
    command = [sys.executable, "-c", WORKER.replace("{error}", error), str(tiny_model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            ready = next(line for line in process.stdout if "ready:" in line)
            url = ready.split()[-1]
            asked = {
                "model": "tiny",
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 40,
                "stream": stream,
            }
            answer = httpx.post(f"{url}/chat/completions", json=asked, timeout=60)
            assert (answer.status_code, "engine_failed" in answer.text) == (200 if stream else 500, True)
            assert "[DONE]" not in answer.text
            assert process.wait(60) == 1
            (said,) = [line for line in process.stderr if line.startswith("otelctx: ")]
            assert f"EngineFailed: {words[0]}" in said
            assert words[1] in said
        finally:
            process.kill()
