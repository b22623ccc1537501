"""The end is bounded, in order, and what is lost is said."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from threading import Event, Thread, Timer
from time import monotonic
from typing import Any

import pytest

from otelctx.asgi import flush as flushes
from otelctx.asgi.flush import flush, unanswered
from otelctx.sdk.handle import Handle
from otelctx.sdk.providers import Provider
from otelctx.testing.receiver import OtlpReceiver

MANY = """
    from opentelemetry import trace
    from otelctx.sdk.configure import configure
    handle = configure("chat-api", logs=False)
    tracer = trace.get_tracer("app")
    for _ in range(10_000):
        tracer.start_span("work").end()
"""
SUM = """
    handle.shutdown()
    (pipeline,) = [p for p in handle._pipelines() if p.signal == "traces"]
    print("all", pipeline.delivered + pipeline.dropped.total(), sorted(pipeline.dropped), flush=True)
"""


@pytest.fixture
def silent() -> Iterator[str]:
    """A collector that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        yield f"http://127.0.0.1:{hole.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("collector", ["dead", "silent"])
def test_ten_thousand_spans_and_no_collector_end_in_time_and_each_is_counted(
    run: Any, silent: str, protocol: str, collector: str
) -> None:
    """opentelemetry-python #4043, #3309, #2284: without a bound it is up to a minute."""
    endpoint = silent if collector == "silent" else "http://127.0.0.1:1"
    out = run(MANY + SUM, timeout=120, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    assert "all 10000 ['queue_full', 'shutdown']" in out
    assert "telemetry was not delivered before the end" in out


def test_what_the_others_lost_is_in_the_last_metrics(run: Any, silent: str) -> None:
    with OtlpReceiver() as receiver:
        run(MANY, timeout=120, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=silent)
        points = receiver.metrics("otelctx.telemetry.dropped")
    assert {p.attributes["otelctx.telemetry.signal"] for p in points} == {"traces"}
    assert {p.attributes["otelctx.telemetry.reason"] for p in points} == {"queue_full", "shutdown"}
    assert sum(p.value for p in points) == 10_000


def test_all_that_a_live_collector_can_take_arrives(run: Any) -> None:
    with OtlpReceiver() as receiver:
        out = run(MANY + SUM, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint, OTEL_BSP_MAX_QUEUE_SIZE="10000")
        assert len(receiver.spans()) == 10_000
    assert "all 10000 []" in out
    assert "not delivered" not in out


SERVED = """
import uvicorn
from opentelemetry import trace
from otelctx.sdk.configure import configure
configure("served", logs=False)
async def app(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.complete"})
    trace.get_tracer("app").start_span("before the end").end()
    print("started", flush=True)
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
uvicorn.run(app, port=0, log_level="critical")
"""
PLAIN = """
import time
from opentelemetry import trace
from otelctx.sdk.configure import configure
configure("plain", logs=False)
trace.get_tracer("app").start_span("before the end").end()
print("started", flush=True)
while True:
    time.sleep(60)
"""
OWN = PLAIN.replace(
    "import time\n", "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param(SERVED, -signal.SIGTERM, id="uvicorn"),
        pytest.param(PLAIN, -signal.SIGTERM, id="a script"),
        pytest.param(OWN, 7, id="a script that handles it itself"),
    ],
)
def test_a_process_that_is_told_to_stop_delivers_what_it_has_and_ends_as_it_would(code: str, status: int) -> None:
    """SIGTERM ends Python at once; uvicorn ends gracefully, and then raises it again."""
    with OtlpReceiver() as receiver:
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == status
        assert [s.name for s in receiver.spans()] == ["before the end"]


# the parts, without processes


class Recorded:
    """A provider that writes down when it is ended, and does not come back before it is let go."""

    def __init__(self, name: str, journal: list[str], *, stuck: bool = False) -> None:
        self.name, self.journal = name, journal
        self.let_go = Event()
        if not stuck:
            self.let_go.set()

    def shutdown(self) -> None:
        self.journal.append(f"{self.name} shut down")
        self.let_go.wait()

    def force_flush(self) -> None:
        self.journal.append(f"{self.name} flushed")
        self.let_go.wait()


class Failing:
    def shutdown(self) -> None:
        raise RuntimeError("could not deliver")


def _handle(*providers: tuple[Any, Any, bool], clock: Callable[[], float] = monotonic) -> Handle:
    made = [Provider(name, lambda provider=provider: provider, ours) for name, provider, ours in providers]
    return Handle(made, clock=clock)


def _in_a_thread(call: Callable[[], Any]) -> list[Any]:
    done: list[Any] = []
    thread = Thread(target=lambda: done.append(call()), daemon=True)
    thread.start()
    thread.join(60)
    return done


def test_it_returns_though_a_provider_is_stuck_and_a_second_call_does_nothing(eventually: Any) -> None:
    stuck = Recorded("traces", [], stuck=True)
    handle = _handle(("traces", stuck, True), ("metrics", Failing(), True), ("logs", object(), False))
    assert _in_a_thread(lambda: (handle.shutdown(0.05), handle.shutdown(0.05))) == [(False, True)]
    eventually(lambda: stuck.journal)
    stuck.let_go.set()
    assert stuck.journal == ["traces shut down"]


def test_metrics_come_last_and_a_users_own_providers_are_only_flushed() -> None:
    journal: list[str] = []
    handle = _handle(
        ("metrics", Recorded("metrics", journal), True),
        ("traces", Recorded("traces", journal), False),
        ("logs", Recorded("logs", journal), True),
    )
    assert handle.shutdown(30.0)
    assert journal[-1] == "metrics shut down"
    assert set(journal[:2]) == {"traces flushed", "logs shut down"}


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """A provider that a server's end has waited for in vain."""
    made = Recorded("traces", [], stuck=True)
    monkeypatch.setattr(flushes, "_PROVIDERS", (lambda: made,))
    flush(0.05)
    return made


def _after(seconds: float) -> Callable[[], float]:
    """A clock that stands at 0 when it is first looked at, and at ``seconds`` from then on."""
    times = chain([0.0], repeat(seconds))
    return lambda: next(times)


def test_after_a_servers_end_that_has_waited_in_vain_it_takes_a_third(late: Recorded) -> None:
    """Else an end without a collector would last twice as long; metrics have something to say only now."""
    metrics = Recorded("metrics", late.journal, stuck=True)
    handle = _handle(("traces", late, True), ("metrics", metrics, True), clock=_after(1201))
    assert unanswered(late)
    assert _in_a_thread(lambda: handle.shutdown(3600)) == [False]
    for part in (late, metrics):
        part.let_go.set()


def test_what_has_come_back_late_is_waited_for_as_ever(late: Recorded, eventually: Any) -> None:
    late.let_go.set()
    eventually(lambda: not unanswered(late))
    handle = _handle(("traces", late, True), clock=_after(1201))
    late.let_go.clear()
    Timer(0.05, late.let_go.set).start()
    assert _in_a_thread(lambda: handle.shutdown(3600)) == [True]


def test_stuck_traces_leave_time_for_the_metrics(eventually: Any) -> None:
    journal: list[str] = []
    stuck = Recorded("traces", journal, stuck=True)
    handle = _handle(("traces", stuck, True), ("metrics", Recorded("metrics", journal), True))
    assert _in_a_thread(lambda: handle.shutdown(0.3)) == [False]
    eventually(lambda: journal == ["traces shut down", "metrics shut down"])
    stuck.let_go.set()
