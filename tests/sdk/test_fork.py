"""Processes that are forked after configure(): each has its own telemetry, and nothing of its parent's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from otelctx.testing.receiver import OtlpReceiver

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork there")

FORKED = """
    import os, time
    from opentelemetry import metrics, trace
    from otelctx.sdk.configure import configure
    handle = configure("forking", logs=False)
    tracer, counter = trace.get_tracer("app"), metrics.get_meter("app").create_counter("app.count")
    counter.add(5)
    tracer.start_span("parent before").end()
    if EXPORTED:
        for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
            provider.force_flush()
    tracer.start_span("parent queued").end()
    pid = os.fork()
    if pid == 0:
        tracer.start_span("child").end()
        counter.add(1, {"who": "child"})
        counter.add(1)
        os._exit(0 if configure("forking") is handle and handle.shutdown(20) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    tracer.start_span("parent after").end()
"""


@pytest.mark.parametrize("exported", [False, True], ids=["before any export", "after an export"])
@pytest.mark.parametrize("protocol", ["grpc"])
def test_a_child_sends_its_own_spans_and_counts_once(run: Any, exported: bool, protocol: str) -> None:
    """opentelemetry-python #3307, #1567."""
    with OtlpReceiver() as receiver:
        code = FORKED.replace("EXPORTED", str(exported))
        run(code, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        assert sorted(s.name for s in receiver.spans()) == ["child", "parent after", "parent before", "parent queued"]
        points = [p for p in receiver.metrics("app.count") if "who" not in p.attributes]
        # Without an instance id the two are one series, of which the receiver keeps the newest.
        assert {p.value for p in points} <= {1, 5}


def test_sums_of_the_parent_are_not_in_the_child() -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from otelctx.sdk.forking import own_metrics

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    counter = provider.get_meter("app").create_counter("app.count")
    counter.add(5)
    own_metrics(provider)
    counter.add(1)
    data: Any = reader.get_metrics_data()
    (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    provider.shutdown()
    assert point.value == 1


def test_workers_that_are_told_apart_by_a_detector_stay_apart_after_a_fork(run: Any) -> None:
    with OtlpReceiver() as receiver:
        out = run(
            """
            import os
            from opentelemetry import metrics
            from opentelemetry.sdk.resources import _get_process_dependent_resource as supported
            from otelctx.sdk.configure import configure
            handle = configure("workers", logs=False)
            counter = metrics.get_meter("app").create_counter("app.count")
            pids = []
            for _ in range(2):
                if (pid := os.fork()) == 0:
                    counter.add(1)
                    os._exit(0 if handle.shutdown(20) else 1)
                pids.append(pid)
            assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
            """
            if _has_instances()
            else "",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            OTEL_EXPERIMENTAL_RESOURCE_DETECTORS="otel,service_instance",
        )
        assert out == ""
        assert [p.value for p in receiver.metrics("app.count")] == ([1, 1] if _has_instances() else [])


def _has_instances() -> bool:
    from opentelemetry.sdk import resources

    return hasattr(resources, "_get_process_dependent_resource")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_deliver_before_they_end(tmp_path: Path, method: str) -> None:
    """They end without the interpreter's own end, and forget what was registered for it."""
    script = tmp_path / "main.py"
    script.write_text(
        """
import multiprocessing, sys
from opentelemetry import trace
from otelctx.sdk.configure import configure

def work(number):
    configure("family", logs=False)
    trace.get_tracer("app").start_span(f"child {number}").end()

if __name__ == "__main__":
    configure("family", logs=False)
    children = multiprocessing.get_context(sys.argv[1])
    started = [children.Process(target=work, args=(number,)) for number in range(2)]
    [child.start() for child in started]
    [child.join() for child in started]
    assert [child.exitcode for child in started] == [0, 0]
"""
    )
    with OtlpReceiver() as receiver:
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_METRICS_EXPORTER": "none"}
        command = [sys.executable, str(script), method]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert sorted(s.name for s in receiver.spans()) == ["child 0", "child 1"]


SERVED = """
import os
from opentelemetry import trace
from otelctx.asgi.middleware import ContextMiddleware
from otelctx.sdk.configure import configure
configure("preloaded", logs=False)
trace.get_tracer("app").start_span("while loading").end()

async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})

app = ContextMiddleware(app)
"""
HOOK = """
import pathlib
def post_worker_init(worker):
    from otelctx.sdk.configure import configure
    configure()
    pathlib.Path(f"{worker.pid}.up").touch()
"""


def test_each_worker_of_a_preloading_gunicorn_sends_what_it_served(tmp_path: Path) -> None:
    """Its workers give SIGTERM back to the system after the fork; configure() in this hook takes it again."""
    (tmp_path / "served.py").write_text(SERVED)
    (tmp_path / "conf.py").write_text(HOOK)
    with OtlpReceiver() as receiver:
        bind = tmp_path / "socket"
        command = [sys.executable, "-m", "gunicorn", "-c", "conf.py", "--preload", "-w", "2", "--log-level", "warning"]
        command += ["--timeout", "120", "--graceful-timeout", "120"]
        command += ["-k", "uvicorn_worker.UvicornWorker", "-b", f"unix:{bind}", "served:app"]
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "PYTHONPATH": str(tmp_path)}
        log = (tmp_path / "log").open("w")
        with log, subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log) as master:
            asked = sum(_ask(bind, master) for _ in range(20))
            # gunicorn's own handler, inherited, swallows what comes before a worker has taken its signals.
            while len(list(tmp_path.glob("*.up"))) < 2:
                assert master.poll() is None
                time.sleep(0.05)
            master.send_signal(signal.SIGTERM)
            assert master.wait(60) == 0
        names = [s.name for s in receiver.spans()]
        assert names.count("GET") == asked, (tmp_path / "log").read_text()
        assert names.count("while loading") == 1, "of the master alone"


def _ask(bind: Path, master: subprocess.Popen[bytes]) -> int:
    while master.poll() is None:
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(60)
                client.connect(str(bind))
                client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                while client.recv(65536):
                    pass
            return 1
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.05)
    raise AssertionError("gunicorn has ended")
