"""The real collector and the real Jaeger as child processes on free loopback ports. ``scripts/backends build`` makes
them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from otelctx.errors import ConfigError
from otelctx.testing.jaeger import JaegerQuery, fetch

__all__ = ["Backend", "Collector", "Jaeger", "Launch", "find", "free_ports", "poll"]

_ROOT: Final = Path(__file__).resolve().parents[2]
# Seconds. Whoever waits is let go as soon as it is there; only what never comes takes them.
_READY: Final = 120.0
_END: Final = 60.0
_ATTEMPTS: Final = 3
_TAKEN: Final = ("address already in use", "connection in use")  # the second is gunicorn's
_OURS: Final = ("OTEL_", "OTELCTX_")


def find(name: str) -> Path:
    """The built binary ``otelctx-collector`` or ``jaeger`` of the versions that this checkout names.

    Raises :class:`~otelctx.errors.ConfigError` if it is not built, or if this is no checkout.
    """
    script = _ROOT / "scripts" / "backends"
    if not script.is_file():
        raise ConfigError(f"{name} is built and configured in a checkout of otelctx's repository; this is none")
    # Asked rather than guessed: where it lies depends on a hash of the manifests, and the script must run before
    # anything is installed.
    done = subprocess.run([sys.executable, str(script), "path", name], capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(done.stderr.strip())
    return Path(done.stdout.strip())


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a process once, in ``folder``, and how to see that it is ready; it gets ``within`` seconds for
    that."""

    command: list[str]
    ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    within: float = _READY
    folder: Path | None = None


class Backend(ABC):
    """One child process with its log. A context manager; :meth:`close` may be called any number of times."""

    def __init__(self, log: Path) -> None:
        """Start it and wait until it is ready. Raises ``RuntimeError`` with the log's end if it does not get there."""
        self.log = log
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._start(self.plan())
                return
            except (RuntimeError, TimeoutError) as exc:
                # Between choosing a port and binding it, somebody else may have taken it: choose again.
                said = self.tail().lower()
                if attempt == _ATTEMPTS or not any(words in said for words in _TAKEN):
                    raise RuntimeError(f"{exc}\n{self.tail(2000)}") from None

    @abstractmethod
    def plan(self) -> Launch:
        """Choose ports and say how to start. Called once per attempt."""

    def _start(self, launch: Launch) -> None:
        # The user's own settings are for the user's own processes, not for these.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                launch.command,
                cwd=launch.folder,
                env={**inherited, **launch.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            poll(launch.ready, lambda: self._process.poll() is None, launch.command[0], launch.within)
        except BaseException:
            self.close()
            raise

    def tail(self, size: int = 8000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-size:]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, negative where a signal has ended it; ``None`` while it runs."""
        return self._process.poll()

    def close(self) -> None:
        """Have it end, and kill it if it has not after a minute."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Jaeger(Backend):
    """Jaeger with its traces in memory. ``url`` is its HTTP API, ``otlp`` host:port of its OTLP over gRPC."""

    url: str
    otlp: str

    def __init__(self, folder: Path) -> None:
        """``folder`` takes the log. Raises :class:`~otelctx.errors.ConfigError` if Jaeger is not built."""
        self._binary = find("jaeger")
        super().__init__(folder / "jaeger.log")

    def plan(self) -> Launch:
        query, query_grpc, otlp, health, metrics = free_ports(5)
        self.url = f"http://127.0.0.1:{query}"
        self.otlp = f"127.0.0.1:{otlp}"
        return Launch(
            [str(self._binary), "--config", str(_ROOT / "collector" / "jaeger.yaml")],
            lambda: fetch(f"http://127.0.0.1:{health}/status")[0] == 200,
            {
                "OTELCTX_JAEGER_QUERY_PORT": str(query),
                "OTELCTX_JAEGER_QUERY_GRPC_PORT": str(query_grpc),
                "OTELCTX_JAEGER_OTLP_PORT": str(otlp),
                "OTELCTX_JAEGER_HEALTH_PORT": str(health),
                "OTELCTX_JAEGER_METRICS_PORT": str(metrics),
                # Else Jaeger tries to trace itself to port 4317, and warns for ever.
                "OTEL_TRACES_SAMPLER": "always_off",
            },
        )

    @property
    def query(self) -> JaegerQuery:
        """Its HTTP API."""
        return JaegerQuery(self.url)

    def get(self, path: str, **query: str) -> Any:
        """See :meth:`~otelctx.testing.jaeger.JaegerQuery.get`."""
        return self.query.get(path, **query)

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """Spans of a trace as Jaeger's UI gets them, each with its ``service`` and ``attributes``; empty if there is
        no such trace."""
        found = self.get(f"/api/traces/{trace_id}")
        spans: list[dict[str, Any]] = []
        for trace in found["data"] if found else ():
            for span in trace["spans"]:
                service = trace["processes"][span["processID"]]["serviceName"]
                tags = {tag["key"]: tag["value"] for tag in span["tags"]}
                spans.append({**span, "service": service, "attributes": tags})
        return spans

    def search(self, service: str, tags: Mapping[str, str] | None = None) -> list[str]:
        """Ids of the service's traces that have one span on which, or on an event of which, are all these tags.

        Values are strings whatever the attribute's type: ``{"otelctx.overflow": "true"}``.
        """
        found = self.get("/api/traces", service=service, tags=json.dumps(dict(tags or {})), limit="1000")
        return [trace["traceID"] for trace in found["data"] or ()] if found else []

    def wait_for(
        self, trace_id: str, complete: Callable[[list[dict[str, Any]]], bool], timeout: float = _READY
    ) -> list[dict[str, Any]]:
        """The spans of a trace as soon as ``complete(spans)``. Raises ``TimeoutError`` with what had arrived."""
        spans: list[dict[str, Any]] = []

        def arrived() -> bool:
            spans[:] = self.trace(trace_id)
            return complete(spans)

        try:
            poll(arrived, lambda: self._process.poll() is None, f"trace {trace_id}", timeout)
        except TimeoutError as exc:
            names = ", ".join(f"{s['service']}: {s['operationName']}" for s in spans) or "nothing"
            raise TimeoutError(f"{exc}; arrived: {names}") from None
        return spans


class Collector(Backend):
    """The collector in front of a Jaeger. ``endpoint`` is what ``OTEL_EXPORTER_OTLP_ENDPOINT`` takes."""

    endpoint: str
    http_endpoint: str

    def __init__(
        self,
        folder: Path,
        jaeger: str,
        *,
        sampling_percentage: float = 100.0,
        decision_wait: str = "3s",
        decision_after_root: str = "500ms",
    ) -> None:
        """``jaeger`` is host:port of Jaeger's OTLP, ``folder`` takes log and queue; durations are Go's. Raises
        :class:`~otelctx.errors.ConfigError` if the collector is not built."""
        self._binary = find("otelctx-collector")
        self._settings = {
            "OTELCTX_STATE_DIR": str(folder),
            "OTELCTX_JAEGER": jaeger,
            "OTELCTX_SAMPLING_PERCENTAGE": f"{sampling_percentage:g}",
            "OTELCTX_DECISION_WAIT": decision_wait,
            "OTELCTX_DECISION_AFTER_ROOT": decision_after_root,
        }
        super().__init__(folder / "collector.log")

    def plan(self) -> Launch:
        grpc, http, health, metrics = free_ports(4)
        self.endpoint = f"http://127.0.0.1:{grpc}"
        self.http_endpoint = f"http://127.0.0.1:{http}"
        return Launch(
            [str(self._binary), "--config", str(_ROOT / "collector" / "otelctx-collector.yaml")],
            lambda: fetch(f"http://127.0.0.1:{health}/")[0] == 200,
            {
                **self._settings,
                "OTELCTX_OTLP_GRPC_PORT": str(grpc),
                "OTELCTX_OTLP_HTTP_PORT": str(http),
                "OTELCTX_HEALTH_PORT": str(health),
                "OTELCTX_METRICS_PORT": str(metrics),
            },
        )


def poll(
    done: Callable[[], bool],
    alive: Callable[[], bool],
    what: str,
    timeout: float = _READY,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Return once ``done()``. Raises ``RuntimeError`` if not ``alive()``, ``TimeoutError`` after ``timeout`` s."""
    deadline = clock() + timeout
    while not done():
        if not alive():
            raise RuntimeError(f"{what}: the process has ended")
        if clock() > deadline:
            raise TimeoutError(f"{what} was not ready within {timeout:g} s")
        sleep(0.05)
