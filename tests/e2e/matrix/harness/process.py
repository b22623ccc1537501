"""One server with all applications, as a child process, and its control port."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.http1 import TIMEOUT
from harness.tables import APPS

from otelctx.testing.backends import Backend, Launch, free_ports

__all__ = ["KEYS", "Process"]

HERE = Path(__file__).resolve().parent.parent
KEYS = "1:" + base64.b64encode(bytes(range(32))).decode()


class Process(Backend):
    """``port`` takes requests."""

    port: int

    def __init__(self, server: str, folder: Path) -> None:
        self._server = server
        self._file = folder / "file"
        self._file.write_bytes(bytes(range(256)) * 1024)
        self._control: Any = None
        super().__init__(folder / f"{server}.log")

    def plan(self) -> Launch:
        self.port, self._control_port = free_ports(2)
        command = [sys.executable, str(HERE / "serve.py"), self._server, str(self.port)]
        environment = {
            "MATRIX_CONTROL": str(self._control_port),
            "MATRIX_MODULES": ",".join(sorted({app.module for app in APPS.values()})),
            "MATRIX_FILE": str(self._file),
            "OTELCTX_KEYS": KEYS,
            # Whatever a coroutine forgets or a callback raises is to be seen in the log.
            "PYTHONUNBUFFERED": "1",
            "PATH": os.environ.get("PATH", ""),
        }
        return Launch(command, self._ready, environment)

    @property
    def body(self) -> bytes:
        """What ``/file`` answers."""
        return self._file.read_bytes()

    def _ready(self) -> bool:
        for port in (self.port, self._control_port):  # gunicorn listens before it has a worker
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    return False
        self._control = socket.create_connection(("127.0.0.1", self._control_port), TIMEOUT).makefile("rwb")
        return True

    def ask(self, op: str, **more: Any) -> Any:
        self._control.write(json.dumps({"op": op, **more}).encode() + b"\n")
        self._control.flush()
        return json.loads(self._control.readline())

    def alive(self) -> dict[str, int]:
        """Objects of requests that are still held, once that does not change any more, or there are none."""
        end = time.monotonic() + TIMEOUT
        while (found := dict(self.ask("alive"))) and time.monotonic() < end:
            time.sleep(0.05)
        return found

    def wait(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Until ``condition(calls)``; ``calls`` are the records of ``serve.Recorder`` by their ``x-case``."""
        end = time.monotonic() + TIMEOUT
        while not condition(calls := self.ask("peek")):
            if time.monotonic() > end:
                raise TimeoutError(f"the calls did not get there within {TIMEOUT:g} s: {calls}")
            time.sleep(0.002)

    def take(self, *cases: str, marks: tuple[str, ...] = ()) -> Any:
        """What was recorded, once all of ``cases`` have ended and said ``marks``."""
        self.wait(
            lambda calls: all(
                case in calls and calls[case]["outcome"] is not None and set(marks) <= set(calls[case]["marks"])
                for case in cases
            )
        )
        return self.ask("take")
