"""Minutes of load on a real worker with real backends, and then all that must hold.

The run is a process of its own, the one that ``make soak`` starts; its progress is shown as it comes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The result of a run, which must be able to take place."""
    report = tmp_path / "soak.jsonl"
    command = [sys.executable, "-m", "scripts.soak", "--report", str(report), "--keep", str(tmp_path), *arguments]
    with capfd.disabled():
        done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 2:
        pytest.skip(f"NO BACKEND: {done.stderr.strip()}")
    assert done.returncode in (0, 1), done.stderr
    result: dict[str, Any] = json.loads(report.read_text().splitlines()[-1])
    return result


def failed(result: dict[str, Any]) -> dict[str, list[str]]:
    return {check["name"]: check["wrong"] for check in result["checks"] if not check["ok"]}


@pytest.mark.e2e
@pytest.mark.model
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("model", "minutes", "sessions"), [("tiny", "2.25", "50"), ("smollm2", "0.75", "10")], ids=("tiny", "smollm2")
)
def test_what_must_hold_under_load_and_failures_holds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], model: str, minutes: str, sessions: str
) -> None:
    """Three minutes in all: many short answers of a tiny model, and real weights for a while."""
    options = ("--model", model, "--minutes", minutes, "--sessions", sessions)
    result = run(tmp_path, capfd, *options)
    assert failed(result) == {}
    assert result["ok"]
