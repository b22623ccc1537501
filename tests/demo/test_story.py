"""The demo as a person runs it: three processes and a real model, and the exit status says whether the books agree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

SERVICES = {"client", "frontend", "worker"}


MARK = b"DEMO_RUN=" + uuid.uuid4().hex.encode()


def demo(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "otelctx.cli", "demo", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        env=os.environ | {"DEMO_RUN": MARK.decode().partition("=")[2]} | (env or {}),
    )


def rows(output: str, title: str) -> dict[str, list[str]]:
    """The cells of the table under ``title``, by its first column."""
    lines = output[output.index(title) :].splitlines()
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    return {row[0]: row[1:] for row in cells[:12]}


@pytest.fixture(scope="module")
def told() -> str:
    result = demo()
    assert result.returncode == 0, result.stdout[-3000:]
    return result.stdout


def test_frames_shrink_after_three_acks_and_cost_less_than_baggage(told: str) -> None:
    wire = rows(told, "Context on the wire")
    for hop in (0, 4):
        kinds = [wire[f"turn {n}"][hop] for n in range(1, 9)]
        assert kinds == ["FULL", "FULL", "FULL", "REF", "DELTA", "REF", "REF", "REF"]
        frame, baggage = (int(wire["turn 4"][hop + column]) for column in (1, 3))
        assert 0 < frame < baggage / 4


def test_tokens_are_reused_until_the_window_is_full_and_then_the_oldest_turns_go(told: str) -> None:
    turns = rows(told, "Tokens in the worker")
    prompt, reused, prefilled, output = (int(c) for c in turns["turn 6"][1:5])
    assert prompt == reused + prefilled
    assert reused > 3 * prefilled
    assert output > 0
    assert "truncation" in turns["turn 8"][-1]
    assert all(int(row[6].split("/")[0]) <= 512 for name, row in turns.items() if name.startswith("turn"))
    assert "overflow" in turns["too long"][-1]


def test_every_trace_is_drawn_from_the_client_to_the_decode_step(told: str) -> None:
    turn = told[told.index("\nturn 4 ") : told.index("\nturn 5 ")]
    order = [
        "client  turn 4",
        "client  POST",
        "frontend  POST /v1",
        "frontend  POST  CLIENT",
        "worker  POST /v1",
        "chat ",
    ]
    places = [turn.index(label) for label in [*order, "prefill", "decode"]]
    assert places == sorted(places)
    assert "otelctx.truncation  at" in told


def test_what_was_exported_is_written_as_otlp_json(told: str) -> None:
    found = re.search(r"OTLP/JSON, which Jaeger's upload takes: (\S+)", told)
    assert found is not None
    document: dict[str, Any] = json.loads(Path(found[1]).read_text())
    resources = [{a["key"]: a["value"] for a in r["resource"]["attributes"]} for r in document["resourceSpans"]]
    assert {r["service.name"]["stringValue"] for r in resources} == SERVICES
    span = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert re.fullmatch(r"[0-9a-f]{32}", span["traceId"])


def test_all_of_it_has_ended(told: str) -> None:
    """No process is left that has the run's mark in its environment."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        assert MARK not in environment or entry.parent.name == str(os.getpid())
    assert "Traceback" not in told


def test_a_jaeger_that_is_not_there_is_one_clear_line() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    result = demo("--jaeger-url", "http://127.0.0.1:9", env=environment)
    assert result.returncode == 1
    (line,) = result.stdout.splitlines()
    assert line.startswith("otelctx: Jaeger does not answer at http://127.0.0.1:9")
