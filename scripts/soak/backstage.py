"""The processes under and around the load: worker, collector, Jaeger; and the outages of the collector."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import httpx

from otelctx.testing.backends import Collector, Jaeger, Launch
from scripts.soak.options import WorkerOptions
from scripts.soak.relay import Relay

__all__ = ["Outage", "Telemetry", "Worker", "keys", "outages", "worker"]

Kind = Literal["restart", "refuse", "swallow"]
_KINDS: Final[tuple[Kind, ...]] = ("restart", "swallow", "restart", "refuse")
_READY: Final = re.compile(r"ready: .* at (http://[\d.]+:\d+)/v1")
_START: Final = 300.0  # seconds: the model may have to be unpacked first
_STOP: Final = 20.0
# The indented frames, and the line that names the error.
_TRACEBACK: Final = re.compile(r"^Traceback \(most recent call last\):\n((?: .*\n)+.*)", re.MULTILINE)
_ACCEPTED: Final = re.compile(r"^otelcol_receiver_accepted_spans(?:_total)?\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outage:
    """``at`` and ``seconds`` are counted in seconds of the load."""

    at: float
    seconds: float
    kind: Kind


def outages(seconds: float, seed: int) -> list[Outage]:
    """About one a minute and at least two, from the first tenth of the load to 85 % of it. The first is one of those
    in which the queue fills, so that its size is part of the warm-up."""
    rng = random.Random(seed)
    count = max(2, round(seconds / 40))
    slot = seconds * 0.75 / count
    longest = min(12.0, slot * 0.5)
    return [
        Outage(seconds * 0.1 + number * slot, rng.uniform(longest / 2, longest), _KINDS[number % len(_KINDS)])
        for number in range(count)
    ]


def keys() -> str:
    """A MAC key of this run."""
    return f"1@soak:{base64.b64encode(secrets.token_bytes(32)).decode()}"


class Telemetry:
    """A real collector, restarted when an outage asks for it, behind a relay that stays, and a real Jaeger."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._relay = Relay()
        self._collector: _Collector | None = None
        self.jaeger: Jaeger
        self.accepted = 0
        self.restarts = 0

    async def start(self) -> None:
        """Raises :class:`~otelctx.errors.ConfigError` if a backend is not built."""
        self.jaeger = await asyncio.to_thread(Jaeger, self._folder)
        await self._start_collector()
        await self._relay.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._relay.port}"

    async def suffer(self, outage: Outage, said: Callable[[str], None]) -> None:
        said(f"outage: {outage.kind} for {outage.seconds:.1f} s")
        if outage.kind == "restart":
            # Cut off first, so that nothing arrives between the last look at its books and its end.
            await self._relay.switch("refuse")
            await self._stop_collector()
            await asyncio.sleep(outage.seconds)
            await self._start_collector()
            self.restarts += 1
        else:
            await self._relay.switch(outage.kind)
            await asyncio.sleep(outage.seconds)
        await self._relay.switch("through")
        said("outage: over")

    @asynccontextmanager
    async def silent(self) -> AsyncIterator[None]:
        """While it lasts, nothing is answered, so that the worker's queue fills."""
        await self._relay.switch("swallow")
        try:
            yield
        finally:
            await self._relay.switch("through")

    async def close(self) -> None:
        await self._relay.close()
        if self._collector is not None:
            await self._stop_collector()
        if hasattr(self, "jaeger"):
            await asyncio.to_thread(self.jaeger.close)

    async def _start_collector(self) -> None:
        self._collector = await asyncio.to_thread(_Collector, self._folder, self.jaeger.otlp)
        host, port = self._collector.endpoint.removeprefix("http://").split(":")
        self._relay.target = (host, int(port))

    async def _stop_collector(self) -> None:
        collector, self._collector = self._collector, None
        if collector is not None:
            self.accepted += await asyncio.to_thread(_accepted, collector)
            await asyncio.to_thread(collector.close)


class _Collector(Collector):
    """One whose own metrics can be found."""

    metrics: str

    def plan(self) -> Launch:
        launch = super().plan()
        self.metrics = f"http://127.0.0.1:{launch.environment['OTELCTX_METRICS_PORT']}/metrics"
        return launch


def _accepted(collector: _Collector) -> int:
    """Spans that it has taken over OTLP, by its own books."""
    with httpx.Client(trust_env=False) as client:
        answer = client.get(collector.metrics).raise_for_status()
    return int(sum(float(value) for value in _ACCEPTED.findall(answer.text)))


class Worker:
    """The worker's process; ``url`` once it is ready."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log
        self.url = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        return self._process.poll()

    async def stop(self) -> int:
        """Ask it to end; its exit status."""
        if self._process.poll() is None:
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(self._process.wait, _STOP)
        self._process.kill()
        return await asyncio.to_thread(self._process.wait)

    def tracebacks(self) -> list[str]:
        """Each traceback in its log, without the first line."""
        text = self.log.read_text(errors="replace")
        return [found[1] for found in _TRACEBACK.finditer(text)]

    async def _ready(self) -> None:
        async with asyncio.timeout(_START):
            while (found := _READY.search(self.log.read_text(errors="replace"))) is None:
                if self._process.poll() is not None:
                    raise RuntimeError(f"the worker ended before it was ready:\n{self.log.read_text()[-4000:]}")
                await asyncio.sleep(0.1)
        self.url = found[1]


@asynccontextmanager
async def worker(settings: WorkerOptions, environment: dict[str, str], log: Path) -> AsyncIterator[Worker]:
    """Started and ready; at the end it has ended."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OTELCTX_"))}
    kept = {name: os.environ[name] for name in ("OTELCTX_CACHE_DIR",) if name in os.environ}
    command = [sys.executable, "-u", "-m", "scripts.soak.worker", json.dumps(asdict(settings))]
    running = Worker(_start(command, {**inherited, **kept, **environment}, log), log)
    try:
        await running._ready()
        yield running
    finally:
        await running.stop()


def _start(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
