"""Servers of the same model as child processes, one computing while the others are stopped."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.harness import MissingPeer
from otelctx.testing.backends import Backend, Launch, free_ports
from otelctx.testing.jaeger import fetch

__all__ = ["Otelctx", "Server", "TransformersServe"]

_LOADING: Final = 180.0  # seconds
_NO_EXPORT: Final = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}


class Server(Backend):
    """``url`` is the base of its API, ``model`` what requests call its model, ``options`` how it was started."""

    url: str
    model: str
    options: str

    @contextmanager
    def alone(self, others: list[Server]) -> Iterator[None]:
        """The others don't get to compute inside the block, not even to wait busily."""
        for other in others:
            if other is not self:
                other._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for other in others:
                if other is not self:
                    other._process.send_signal(signal.SIGCONT)

    def _answers(self, path: str) -> bool:
        return fetch(f"{self.url}{path}")[0] == 200


class Otelctx(Server):
    """``otelctx serve``: spans and metrics are made, but sent nowhere."""

    def __init__(self, folder: Path, model: Path, *, window: int, rows: int) -> None:
        self.model = "benchmark"
        self._arguments = ["serve", str(model), "--name", self.model, "--window", str(window), "--rows", str(rows)]
        self.options = f"otelctx serve, window {window}, {rows} rows, spans and metrics without an exporter"
        super().__init__(folder / "otelctx.log")

    def plan(self) -> Launch:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "otelctx.cli", *self._arguments, "--port", str(port)]
        return Launch(command, lambda: self._answers("/readyz"), _NO_EXPORT, _LOADING)


class TransformersServe(Server):
    """``transformers serve`` with continuous batching. Raises :class:`MissingPeer` if it does not start."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.model = str(model)
        chosen = ["--continuous-batching", "--device", "cpu", "--dtype", "float32"]
        self._arguments = ["serve", self.model, *chosen]
        self.options = f"transformers serve {' '.join(chosen)}"
        try:
            super().__init__(folder / "transformers.log")
        except (RuntimeError, TimeoutError) as error:
            raise MissingPeer(f"transformers serve does not start: {error}") from error

    def plan(self) -> Launch:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        program = "from transformers.cli.transformers import main; main()"
        command = [sys.executable, "-c", program, *self._arguments, "--host", "127.0.0.1", "--port", str(port)]
        return Launch(command, lambda: self._answers("/health"), {"HF_HUB_OFFLINE": "1"}, _LOADING)
