"""The application of docs/auto.md is run here, by the command that stands below it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otelctx.auto import applications
from otelctx.settings import Settings
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


def test_the_example_does_what_the_page_says(receiver: OtlpReceiver, tmp_path: Path, serving: Any) -> None:
    (code,) = blocks("python")
    (tmp_path / "app.py").write_text(code)
    settings, words = command()

    def line(port: int) -> list[str]:
        return [str(BIN / words[0]), *(str(port) if word == "8000" else word for word in words[1:])]

    def environment(url: str) -> dict[str, str]:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return {
            **settings,
            "PATH": path,
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "STOCK_URL": f"{url}/health",
        }

    assert "8000" in words
    with serving(tmp_path, line, environment) as server:
        assert server.get("/items/7").json() == {"item": 7}
    spans = receiver.wait_for(lambda spans: len([s for s in spans if s.kind != "INTERNAL"]) >= 2)
    seen = sorted((s.service, s.kind, s.name) for s in spans if s.kind != "INTERNAL")
    assert seen == [("shop", "CLIENT", "GET"), ("shop", "SERVER", "GET /items/{item}")]


def test_the_page_knows_every_framework_and_variable() -> None:
    for _, name in applications._CLASSES:
        assert {"ASGIHandler": "get_asgi_application"}.get(name, name) in PAGE
    table = [line.split()[0] for line in (Settings.__doc__ or "").splitlines() if "zero-code" in line]
    assert table
    assert all(f"`{name}`" in PAGE for name in table)
