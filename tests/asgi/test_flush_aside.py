"""While telemetry leaves at a server's end, the loop goes on; and it leaves under uvicorn also without a lifespan."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from otelctx.asgi import flush as module
from otelctx.asgi.flush import flush_aside, flush_with_uvicorn, flushing
from otelctx.testing.receiver import OtlpReceiver

COMPLETE = {"type": "lifespan.shutdown.complete"}


class Slow:
    """A provider whose flush ends once it is let go."""

    def __init__(self) -> None:
        self.began, self.let_go = threading.Event(), threading.Event()

    def force_flush(self) -> None:
        self.began.set()
        self.let_go.wait(60)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    provider = Slow()
    monkeypatch.setattr(module, "_PROVIDERS", (lambda: provider,))
    monkeypatch.setattr(module, "flush", partial(module.flush, timeout=60.0))
    yield provider
    provider.let_go.set()
    for thread in threads():
        thread.join(60)
    assert threads() == []


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("otelctx-flush")]


async def begun(provider: Slow) -> None:
    assert await asyncio.to_thread(provider.began.wait, 60)


async def test_the_loop_goes_on_while_a_lifespans_end_waits_for_the_collector(slow: Slow) -> None:
    events: list[str] = []

    async def send(message: Any) -> None:
        events.append(message["type"])

    ending = asyncio.ensure_future(flushing({"type": "lifespan"}, send)(COMPLETE))
    await begun(slow)
    events.append("others go on")
    slow.let_go.set()
    await ending
    assert events == ["others go on", "lifespan.shutdown.complete"]


async def test_a_lifespans_end_that_is_cancelled_waits_for_nobody(slow: Slow) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    ending = asyncio.ensure_future(flushing({"type": "lifespan"}, send)(COMPLETE))
    await begun(slow)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert (sent, slow.let_go.is_set()) == ([], False)


async def test_a_loop_that_is_closed_meanwhile_is_not_told(slow: Slow) -> None:
    """pytest fails on what a thread raises."""

    async def leave() -> None:
        ending = asyncio.ensure_future(flush_aside())
        await begun(slow)
        ending.cancel()

    await asyncio.to_thread(asyncio.run, leave())


async def test_where_no_thread_can_be_had_the_end_is_not_held_up(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unstarted(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "Thread", Unstarted)
    await flush_aside()
    assert not slow.began.is_set()


async def test_a_flush_that_fails_holds_nobody_up(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is room for one more thread, and not for the three that send."""

    def fails() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "flush", fails)
    await asyncio.wait_for(flush_aside(), 60)


def test_under_a_loop_that_is_not_asyncios_it_is_flushed_all_the_same(slow: Slow) -> None:
    slow.let_go.set()
    coroutine = flush_aside()
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert slow.began.is_set()


@pytest.fixture
def server() -> Iterator[uvicorn.Server]:
    """One that has taken the signals of this thread, as it does before it imports its application."""
    made = uvicorn.Server(uvicorn.Config(lambda: None))
    with made.capture_signals():
        yield made


async def end(server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    order: list[str] = []
    monkeypatch.setattr(module, "flush", lambda: order.append("flushed"))
    server.servers = []

    async def lifespan() -> None:
        order.append("lifespan")

    monkeypatch.setattr(server, "lifespan", SimpleNamespace(shutdown=lifespan), raising=False)
    await server.shutdown()
    return order


async def test_uvicorn_flushes_once_after_the_lifespan(server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flush_with_uvicorn()
    assert flush_with_uvicorn()
    assert await end(server, monkeypatch) == ["lifespan", "flushed"]


def test_a_lifespan_leaves_it_to_uvicorn(server: uvicorn.Server) -> None:
    async def send(message: Any) -> None: ...

    assert flushing({"type": "lifespan"}, send) is send
    assert "shutdown" in vars(server)


async def test_who_is_forced_to_leave_is_not_held_up(server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    flush_with_uvicorn()
    server.force_exit = True
    assert await end(server, monkeypatch) == []


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None, SimpleNamespace().__init__])
def test_whoever_else_handles_the_signal_is_left_alone(handler: Any) -> None:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        assert not flush_with_uvicorn()
    finally:
        signal.signal(signal.SIGTERM, before)


APP = """
import otelctx
from opentelemetry import trace

otelctx.configure("served", logs=False)

async def app(scope, receive, send):
    assert scope["type"] == "http"
    trace.get_tracer("app").start_span("work").end()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})
"""
WRAPPED = APP + "app = otelctx.wrap(app)\n"


CELLS = [
    pytest.param("auto", APP, {"work"}, 1, id="one process"),
    pytest.param("off", APP, {"work"}, 2, id="workers that call nothing at their end"),
    pytest.param("auto", WRAPPED, {"work", "GET"}, 2, id="workers whose application refuses the lifespan"),
]


@pytest.mark.parametrize(("lifespan", "code", "names", "workers"), CELLS)
def test_sigterm_loses_nothing_of_an_application_without_a_lifespan(
    serving: Any, tmp_path: Path, lifespan: str, code: str, names: set[str], workers: int
) -> None:
    (tmp_path / "app.py").write_text(code)
    options = ("--workers", str(workers), "--timeout-worker-healthcheck", "120", "--lifespan", lifespan)

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), *options]

    def up(server: Any) -> bool:
        """All of them: one that is told to stop while it starts says what it thinks of that."""
        return bool(server.tail().count("Started server process") == workers and server.listens())

    with OtlpReceiver() as receiver:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "60000"}
        with serving(tmp_path, command, lambda url: settings, up) as server:
            assert server.get().status_code == 200
        assert {span.name for span in receiver.spans()} == names
    assert server.status in (0, -signal.SIGTERM)
    assert [line for line in server.log.read_text().splitlines() if not line.startswith("INFO:")] == []
