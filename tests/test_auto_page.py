"""The application of docs/auto.md is run here, by the command that stands below it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from otelctx.auto import applications
from otelctx.settings import Settings
from otelctx.testing.backends import free_ports, poll
from otelctx.testing.receiver import OtlpReceiver

PAGE = (Path(__file__).parent.parent / "docs" / "auto.md").read_text()
BIN = Path(sys.executable).parent


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)


def command() -> tuple[dict[str, str], list[str]]:
    (line,) = [block for block in blocks("console") if "opentelemetry-instrument" in block]
    words = shlex.split(line)
    settings = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    return settings, words[len(settings) :]


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as made:
        yield made


def test_the_example_does_what_the_page_says(receiver: OtlpReceiver, tmp_path: Path) -> None:
    (code,) = blocks("python")
    (tmp_path / "app.py").write_text(code)
    settings, words = command()
    (port,) = free_ports(1)
    words[words.index("8000")] = str(port)
    url = f"http://127.0.0.1:{port}"
    given = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "STOCK_URL": f"{url}/health",
    }
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(BIN / words[0]), *words[1:]],
            cwd=tmp_path,
            env={**os.environ, **settings, **given},
            stdout=out,
            stderr=subprocess.STDOUT,
        )

    def up() -> bool:
        try:
            return httpx.get(f"{url}/health", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    try:
        poll(up, lambda: process.poll() is None, log.read_text(), 60)
        assert httpx.get(f"{url}/items/7", trust_env=False).json() == {"item": 7}
    finally:
        process.terminate()
        process.wait(30)
    spans = receiver.wait_for(lambda spans: len([s for s in spans if s.kind != "INTERNAL"]) >= 2, 30)
    seen = sorted((s.service, s.kind, s.name) for s in spans if s.kind != "INTERNAL")
    assert seen == [("shop", "CLIENT", "GET"), ("shop", "SERVER", "GET /items/{item}")]


def test_the_page_knows_every_framework_and_variable() -> None:
    for _, name in applications._CLASSES:
        assert {"ASGIHandler": "get_asgi_application"}.get(name, name) in PAGE
    table = [line.split()[0] for line in (Settings.__doc__ or "").splitlines() if "zero-code" in line]
    assert table
    assert all(f"`{name}`" in PAGE for name in table)
