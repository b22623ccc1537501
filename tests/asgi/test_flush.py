from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import _logs, metrics, trace

from otelctx.asgi import flush as module
from otelctx.asgi.flush import flush, flushing, unflushed
from otelctx.asgi.middleware import wrap
from otelctx.testing.receiver import OtlpReceiver


class Provider:
    def __init__(self, send: Any) -> None:
        self.force_flush = send


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(*sends: Any) -> None:
        monkeypatch.setattr(module, "_PROVIDERS", tuple((lambda s=send: Provider(s)) for send in sends))

    return use


async def test_all_is_sent_before_a_lifespan_says_its_last_word(providers: Any) -> None:
    events: list[str] = []
    providers(lambda: events.append("flushed"))

    async def send(message: Any) -> None:
        events.append(message["type"])

    scope: Any = {"type": "lifespan"}
    outer = flushing(scope, send)
    assert flushing(scope, outer) is outer, "a middleware within another one"
    for kind in ("startup.complete", "shutdown.complete"):
        await outer({"type": f"lifespan.{kind}"})
    assert events == ["lifespan.startup.complete", "flushed", "lifespan.shutdown.complete"]


async def test_the_middleware_does_so_whatever_the_application_is(providers: Any) -> None:
    events: list[str] = []
    providers(lambda: events.append("flushed"))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.shutdown.complete"})

    async def send(message: Any) -> None:
        events.append(message["type"])

    async def receive() -> Any:
        raise AssertionError

    await wrap(wrap(application))({"type": "lifespan"}, receive, send)
    assert events == ["flushed", "lifespan.shutdown.complete"]


async def test_a_server_that_delivers_after_its_end_has_nothing_to_wait_for(providers: Any) -> None:
    events: list[str] = []
    providers(lambda: events.append("flushed"))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.shutdown.complete"})

    async def send(message: Any) -> None:
        events.append(message["type"])

    await unflushed(wrap(application))({"type": "lifespan"}, lambda: None, send)
    assert events == ["lifespan.shutdown.complete"]


async def test_in_a_thread_of_the_process_where_it_goes_on_nothing_waits(providers: Any) -> None:
    events: list[str] = []
    providers(lambda: events.append("flushed"))

    async def send(message: Any) -> None:
        events.append(message["type"])

    def run() -> None:
        asyncio.run(flushing({"type": "lifespan"}, send)({"type": "lifespan.shutdown.complete"}))

    await asyncio.to_thread(run)
    assert events == ["lifespan.shutdown.complete"]


def test_a_failure_and_a_collector_that_does_not_answer_hold_nobody_up(providers: Any) -> None:
    gate, sent = threading.Event(), threading.Event()

    def fails() -> None:
        raise TimeoutError

    providers(gate.wait, fails, sent.set)
    flush(timeout=0.2)
    assert sent.wait(60), "it was told, if not in that time"
    gate.set()


def test_the_apis_own_providers_have_nothing_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    own = (trace.NoOpTracerProvider, metrics.NoOpMeterProvider, _logs.NoOpLoggerProvider)
    monkeypatch.setattr(module, "_PROVIDERS", own)
    threads = threading.active_count()
    flush()
    assert threading.active_count() == threads


APP = """
from contextlib import asynccontextmanager
from fastapi import FastAPI
import otelctx

@asynccontextmanager
async def lifespan(app):
    AT_START
    yield
    AT_END

AT_IMPORT
app = FastAPI(lifespan=lifespan)

@app.get("/")
def index() -> str:
    return "ok"

app.add_middleware(otelctx.ContextMiddleware)
"""
PLACES = {
    "as it is imported": {"AT_IMPORT": "otelctx.configure('served')"},
    "as it starts": {"AT_START": "otelctx.configure('served')"},
    "as it starts, shut down as it ends": {
        "AT_START": "handle = otelctx.configure('served')",
        "AT_END": "handle.shutdown()",
    },
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("place", list(PLACES))
def test_sigterm_loses_nothing_wherever_the_application_calls_configure(
    serving: Any, tmp_path: Path, place: str, workers: int
) -> None:
    """uvicorn raises SIGTERM once more at its end, and imports what its workers serve under handlers of its own."""
    code = APP
    for where in ("AT_IMPORT", "AT_START", "AT_END"):
        code = code.replace(where, PLACES[place].get(where, "pass"))
    (tmp_path / "app.py").write_text(code)
    options = ("--workers", str(workers), "--timeout-worker-healthcheck", "120")

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), *options]

    def up(server: Any) -> bool:
        """All of them: one that is told to stop while it starts says what it thinks of that."""
        return bool(server.tail().count("Application startup complete.") == workers and server.listens())

    with OtlpReceiver() as receiver:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "60000"}
        with serving(tmp_path, command, lambda url: settings, up) as server:
            assert server.get().status_code == 200
        assert [span.name for span in receiver.spans()] == ["GET /"]
    noise = [line for line in server.log.read_text().splitlines() if not line.startswith("INFO:")]
    assert noise == []
