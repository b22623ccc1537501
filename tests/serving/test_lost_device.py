"""A worker whose device is lost answers what is in flight, says why, and ends for its supervisor to start another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

# A real worker, whose twenty-first forward loses the device.
WORKER = """
import sys, torch
from otelctx.inference import runner
step, calls = runner.Runner.step, []
def lost(self, work):
    calls.append(work)
    if len(calls) > 20:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered\\nCUDA kernel errors might be …")
    return step(self, work)
runner.Runner.step = lost
sys.argv = ["otelctx", "serve", sys.argv[1], "--port", "0", "--window", "128", "--name", "tiny", "--drain", "5"]
from otelctx.cli import main
main()
"""


@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_without_its_device_ends_and_says_why(tiny_model: Path, stream: bool) -> None:
    command = [sys.executable, "-c", WORKER, str(tiny_model)]
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
            assert "EngineFailed: the device is lost" in said
            assert "device-side assert triggered" in said
        finally:
            process.kill()
