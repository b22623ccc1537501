"""The stage: the processes of the demo, the taps between them, and where their telemetry goes."""

from __future__ import annotations

import base64
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from otelctx.demo.processes import Process, python
from otelctx.demo.script import WINDOW
from otelctx.demo.tap import Tap

__all__ = ["MODEL", "Stage", "environment", "staged"]

MODEL: Final = "SmolLM2-135M-Instruct"
_WORKER_READY: Final = re.compile(r"ready: .* at http://([\d.]+):(\d+)/v1")
_FRONTEND_READY: Final = re.compile(r"running on http://([\d.]+):(\d+)")
_KEPT: Final = ("OTELCTX_CACHE_DIR",)
_PATIENCE: Final = 300.0  # seconds: the first run unpacks the model


@dataclass(frozen=True, slots=True)
class Stage:
    """``outer`` is the tap between client and frontend, ``inner`` the one between frontend and worker."""

    outer: Tap
    inner: Tap
    frontend: Process
    worker: Process


def environment(telemetry: Mapping[str, str], *, inherit: bool) -> dict[str, str]:
    """What all three processes have in common: a MAC key of this run, and where telemetry goes, soon.

    ``inherit``: the user's own ``OTEL_*`` variables count; else none of them does.
    """
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    dropped = ("OTELCTX_",) if inherit else ("OTELCTX_", "OTEL_")
    common = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(dropped)}
    common |= {
        "OTELCTX_KEYS": f"1@demo:{key}",
        "OTEL_BSP_SCHEDULE_DELAY": "200",  # ms
        "OTEL_METRIC_EXPORT_INTERVAL": "2000",  # ms
        "OTEL_TRACES_SAMPLER": "always_on",
        "PYTHONUNBUFFERED": "1",
    }
    return common | dict(telemetry)


@asynccontextmanager
async def staged(env: dict[str, str], say: Callable[[str], None]) -> AsyncIterator[Stage]:
    """Everything started, in the order in which it is needed; at the end all of it has ended."""
    outer, inner = Tap("client → frontend"), Tap("frontend → worker")
    worker = Process(
        "the worker",
        python("-m", "otelctx.cli", "serve", MODEL, "--port", "0", "--window", str(WINDOW), "--rows", "2"),
        env | {"OTEL_SERVICE_NAME": "worker"},
    )
    async with AsyncExitStack() as stack:
        for tap in (outer, inner):
            await tap.start()
            stack.push_async_callback(tap.close)
        frontend = Process(
            "the frontend",
            python("-m", "uvicorn", "otelctx.demo.frontend:app", "--port", "0", "--no-access-log"),
            env | {"OTEL_SERVICE_NAME": "frontend", "WORKER_URL": f"{inner.url}/v1"},
        )
        for process, tap, ready in ((worker, inner, _WORKER_READY), (frontend, outer, _FRONTEND_READY)):
            stack.push_async_callback(process.stop)
            await process.start(ready, say, within=_PATIENCE)
            tap.target = process.address
        yield Stage(outer, inner, frontend, worker)
