"""``opentelemetry-instrument`` around real servers: an application without a word of otelctx in it, and contrib's
instrumentors of the same libraries in the same process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from otelctx.clients.dispatch import instrument
from otelctx.context.current import session
from otelctx.exchange.node import Node
from otelctx.settings import Settings
from otelctx.testing.receiver import OtlpReceiver

KEYS = "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
APP = """
import os, httpx
from fastapi import FastAPI
app = FastAPI()

@app.get("/health")
async def health():
    return os.getpid()

@app.get("/upstream")
async def upstream():
    return {}

@app.get("/items/{item}")
async def item(item: int, url: str):
    async with httpx.AsyncClient(trust_env=False) as client:
        (await client.get(url, timeout=120)).raise_for_status()
    return {"item": item}
"""
# A worker on a busy machine may take long to start, and is not to be taken for hung meanwhile.
SERVERS = {
    "uvicorn": ("uvicorn", "--host", "127.0.0.1", "--port", "{port}"),
    "uvicorn, two workers": (
        *("uvicorn", "--host", "127.0.0.1", "--port", "{port}"),
        *("--workers", "2", "--timeout-worker-healthcheck", "120"),
    ),
    "hypercorn": ("hypercorn", "--bind", "127.0.0.1:{port}"),
    "gunicorn": (
        *("gunicorn", "-k", "uvicorn_worker.UvicornWorker", "--bind", "127.0.0.1:{port}"),
        *("--workers", "2", "--timeout", "120", "--graceful-timeout", "120"),
    ),
}
SPAWNING = {"uvicorn, two workers", "hypercorn"}
BIN = Path(sys.executable).parent


@pytest.fixture
def served(serving: Any, receiver: OtlpReceiver, tmp_path: Path) -> Callable[..., Any]:
    """``with served("uvicorn") as url:`` by the command, exporting to ``receiver``."""

    @contextmanager
    def run(name: str, **environment: str) -> Iterator[str]:
        (tmp_path / "app.py").write_text(APP)
        settings = {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OTEL_PROPAGATORS": "tracecontext,baggage,otelctx",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_SERVICE_NAME": "zero",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTELCTX_KEYS": KEYS,
            "OTELCTX_EXCLUDED": "/health,/static/*",
            **environment,
        }
        program = str(BIN / "opentelemetry-instrument")

        def command(port: int) -> list[str]:
            return [program, *(part.format(port=port) for part in SERVERS[name]), "app:app"]

        with serving(tmp_path, command, lambda url: settings) as server:
            assert server.get("/health").status_code == 200
            yield server.url

    return run


@pytest.fixture
def reaching() -> None:
    """Older commands take themselves out of what a process that is spawned inherits."""
    code = "import os; print('auto_instrumentation' in os.environ['PYTHONPATH'])"
    command = [str(BIN / "opentelemetry-instrument"), sys.executable, "-c", code]
    off = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
    done = subprocess.run(command, env={**os.environ, **off}, capture_output=True, text=True, check=True)
    if done.stdout.strip() != "True":
        pytest.skip("this version of opentelemetry-instrument does not reach processes that are spawned")


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as made:
        yield made


def ask(url: str) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    with (
        instrument(httpx.Client(trust_env=False, timeout=120), node=Node(Settings(keys=KEYS))) as client,
        session("s-1"),
    ):
        client.get(f"{url}/items/7", params={"url": f"{url}/upstream"}, headers=headers).raise_for_status()


def kinds(spans: list[Any]) -> list[tuple[str, str]]:
    return sorted((span.kind, span.name) for span in spans if span.kind != "INTERNAL")


@pytest.mark.parametrize("name", list(SERVERS))
def test_a_plain_application_behind_the_command(
    name: str, receiver: OtlpReceiver, served: Any, request: pytest.FixtureRequest
) -> None:
    if name in SPAWNING:
        request.getfixturevalue("reaching")
    with served(name) as url:
        ask(url)
    spans = receiver.wait_for(lambda spans: len([s for s in spans if s.kind != "INTERNAL"]) >= 3)
    assert kinds(spans) == [("CLIENT", "GET"), ("SERVER", "GET /items/{item}"), ("SERVER", "GET /upstream")]
    item, upstream = (next(s for s in spans if s.name.endswith(end)) for end in ("{item}", "upstream"))
    client = next(s for s in spans if s.kind == "CLIENT")
    assert (client.parent_id, upstream.parent_id) == (item.span_id, client.span_id)
    assert {s.trace_id for s in spans} == {item.trace_id}
    assert {s.attributes.get("session.id") for s in (item, client, upstream)} == {"s-1"}, "context came, and went on"
    assert item.attributes["http.route"] == "/items/{item}"
    assert {s.service for s in spans} == {"zero"}
    points = receiver.metrics("http.server.request.duration")
    assert sum(point.count or 0 for point in points) == 2, "and none of /health"
    assert receiver.metrics("http.server.duration") == [], "contrib's middleware has stepped aside"


def test_it_can_be_left_out_by_the_commands_own_switch(receiver: OtlpReceiver, served: Any) -> None:
    with served("uvicorn", OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="otelctx,httpx") as url:
        ask(url)
    assert receiver.metrics("http.client.request.duration") == []
    assert [s for s in receiver.spans() if "http.route" in s.attributes and "session.id" in s.attributes] == []


@pytest.mark.parametrize("disabled", ["fastapi,httpx", "fastapi", "httpx"])
def test_with_and_without_contribs_instrumentors_it_is_the_same(
    receiver: OtlpReceiver, served: Any, disabled: str
) -> None:
    with served("uvicorn", OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=disabled) as url:
        ask(url)
    spans = receiver.wait_for(lambda spans: len([s for s in spans if s.kind != "INTERNAL"]) >= 3)
    assert kinds(spans) == [("CLIENT", "GET"), ("SERVER", "GET /items/{item}"), ("SERVER", "GET /upstream")]


def test_what_is_wrong_and_what_the_application_says_are_still_printed() -> None:
    """An exporting handler on the root logger, as contrib's logging has one, takes Python's own away: a warning would
    be seen by nobody if there is no collector.
    """
    code = "import logging; logging.getLogger('app').warning('the application speaks'); logging.shutdown()"
    environment = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS")}
    environment |= {"OTEL_LOGS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}

    def printed(**more: str) -> list[str]:
        command = [str(BIN / "opentelemetry-instrument"), sys.executable, "-c", code]
        done = subprocess.run(
            command, env={**os.environ, **environment, **more}, capture_output=True, text=True, check=True, timeout=120
        )
        return done.stderr.splitlines()

    lines = printed(OTELCTX_KEYS="nonsense")
    assert lines[0].startswith("otelctx does nothing in this process: key 1 of OTELCTX_KEYS")
    assert lines.count("the application speaks") == 1
    assert printed(OTELCTX_KEYS=KEYS).count("the application speaks") == 1
