"""The real collector and the real Jaeger as child processes on free loopback ports. ``scripts/backends build`` makes
them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from otelctx.errors import ConfigError
from otelctx.settings import Settings

__all__ = ["Backend", "Collector", "Jaeger", "find", "free_ports"]

_CONFIGS: Final = Path(__file__).resolve().parents[2] / "collector"
_READY: Final = 30.0  # seconds


def find(name: str) -> Path:
    """The newest built binary ``otelctx-collector`` or ``jaeger``. Raises :class:`~otelctx.errors.ConfigError`."""
    found = sorted(
        (Settings.load().cache_dir / "backends").glob(f"*/{name}"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    if not found:
        raise ConfigError(f"{name} is not built; run: scripts/backends build (needs Go, about nine minutes, once)")
    return found[0]


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


class Backend:
    """One child process with its log. A context manager; :meth:`close` may be called any number of times."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path, health: str) -> None:
        """Start it and wait until ``health`` answers 200. Raises ``RuntimeError`` with the log's end if it does not."""
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command, env=os.environ | env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        try:
            _poll(lambda: _get(health)[0] == 200, lambda: self._process.poll() is None, f"{command[0]} at {health}")
        except RuntimeError as exc:
            self.close()
            raise RuntimeError(f"{exc}\n{log.read_text(errors='replace')[-2000:]}") from None

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def __enter__(self) -> Backend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Jaeger(Backend):
    """Jaeger with its traces in memory. ``url`` is its HTTP API, ``otlp`` host:port of its OTLP over gRPC."""

    def __init__(self, folder: Path) -> None:
        """``folder`` takes the log. Raises :class:`~otelctx.errors.ConfigError` if Jaeger is not built."""
        query, query_grpc, otlp, health, metrics = free_ports(5)
        self.url = f"http://127.0.0.1:{query}"
        self.otlp = f"127.0.0.1:{otlp}"
        env = {
            "OTELCTX_JAEGER_QUERY_PORT": str(query),
            "OTELCTX_JAEGER_QUERY_GRPC_PORT": str(query_grpc),
            "OTELCTX_JAEGER_OTLP_PORT": str(otlp),
            "OTELCTX_JAEGER_HEALTH_PORT": str(health),
            "OTELCTX_JAEGER_METRICS_PORT": str(metrics),
            # Else Jaeger tries to trace itself to port 4317, and warns for ever.
            "OTEL_TRACES_SAMPLER": "always_off",
        }
        command = [str(find("jaeger")), "--config", str(_CONFIGS / "jaeger.yaml")]
        super().__init__(command, env, folder / "jaeger.log", f"http://127.0.0.1:{health}/status")

    def get(self, path: str, **query: str) -> Any:
        """JSON of an API path, or ``None`` for 404. Raises ``RuntimeError`` for what is no JSON: an unknown
        path is answered with 200 and the UI's page."""
        status, kind, body = _get(f"{self.url}{path}?{urllib.parse.urlencode(query)}")
        if status == 404:
            return None
        if status != 200 or "html" in kind:
            raise RuntimeError(f"{path} answered {status} {kind}: {body[:200]!r}")
        return json.loads(body)

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """Spans of a trace as Jaeger's UI gets them, each with its ``service``; empty if there is no such trace."""
        found = self.get(f"/api/traces/{trace_id}")
        spans: list[dict[str, Any]] = []
        for trace in found["data"] if found else ():
            for span in trace["spans"]:
                service = trace["processes"][span["processID"]]["serviceName"]
                tags = {tag["key"]: tag["value"] for tag in span["tags"]}
                spans.append({**span, "service": service, "attributes": tags})
        return spans

    def search(self, service: str, **tags: str) -> list[str]:
        """Ids of the service's traces that have a span with all these tags (dots as ``__``)."""
        wanted = {key.replace("__", "."): value for key, value in tags.items()}
        found = self.get("/api/traces", service=service, tags=json.dumps(wanted), limit="1000")
        return [trace["traceID"] for trace in found["data"] or ()] if found else []

    def wait_for(self, trace_id: str, complete: Callable[[list[dict[str, Any]]], bool], timeout: float = 30.0) -> Any:
        """The spans of a trace as soon as ``complete(spans)``. Raises ``TimeoutError`` with what had arrived."""
        spans: list[dict[str, Any]] = []

        def arrived() -> bool:
            spans[:] = self.trace(trace_id)
            return complete(spans)

        try:
            _poll(arrived, lambda: True, f"trace {trace_id}", timeout)
        except RuntimeError as exc:
            names = ", ".join(f"{s['service']}: {s['operationName']}" for s in spans) or "nothing"
            raise TimeoutError(f"{exc}; arrived: {names}") from None
        return spans

    def link(self, trace_id: str) -> str:
        """The page of a trace in Jaeger's UI."""
        return f"{self.url}/trace/{trace_id}"


class Collector(Backend):
    """The collector in front of a Jaeger. ``endpoint`` is what ``OTEL_EXPORTER_OTLP_ENDPOINT`` takes."""

    def __init__(
        self, folder: Path, jaeger: str, *, sampling_percentage: float = 100.0, decision_wait: str = "3s"
    ) -> None:
        """``jaeger`` is host:port of Jaeger's OTLP, ``folder`` takes log and queue. Raises
        :class:`~otelctx.errors.ConfigError` if the collector is not built."""
        grpc, http, health, metrics = free_ports(4)
        self.endpoint = f"http://127.0.0.1:{grpc}"
        self.http_endpoint = f"http://127.0.0.1:{http}"
        env = {
            "OTELCTX_OTLP_GRPC_PORT": str(grpc),
            "OTELCTX_OTLP_HTTP_PORT": str(http),
            "OTELCTX_HEALTH_PORT": str(health),
            "OTELCTX_METRICS_PORT": str(metrics),
            "OTELCTX_STATE_DIR": str(folder),
            "OTELCTX_JAEGER": jaeger,
            "OTELCTX_SAMPLING_PERCENTAGE": f"{sampling_percentage:g}",
            "OTELCTX_DECISION_WAIT": decision_wait,
            "OTELCTX_DECISION_AFTER_ROOT": "500ms",
        }
        command = [str(find("otelctx-collector")), "--config", str(_CONFIGS / "otelctx-collector.yaml")]
        super().__init__(command, env, folder / "collector.log", f"http://127.0.0.1:{health}/")


def _get(url: str) -> tuple[int, str, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.headers.get("content-type", ""), answer.read()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.headers.get("content-type", ""), exc.read()
    except (urllib.error.URLError, OSError):
        return 0, "", b""


def _poll(done: Callable[[], bool], alive: Callable[[], bool], what: str, timeout: float = _READY) -> None:
    deadline = time.monotonic() + timeout
    while not done():
        if not alive():
            raise RuntimeError(f"{what} ended at once")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} was not ready within {timeout:g} s")
        time.sleep(0.1)
