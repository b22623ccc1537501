"""The process that ``otelctx serve`` becomes: a loaded model, its engine, and a server in front of it."""

from __future__ import annotations

import inspect
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, cast

import torch
import uvicorn

from otelctx.asgi.flush import unflushed
from otelctx.cli.leaving import LEAVING
from otelctx.cli.options import Options
from otelctx.cli.rereading import keys_on_hangup
from otelctx.cli.saying import Progress, Say
from otelctx.errors import EngineFailed
from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import load
from otelctx.inference.pressure import Limits as PressureLimits
from otelctx.sdk.configure import configure
from otelctx.sdk.signals import handled
from otelctx.serving.application import app
from otelctx.settings import Settings

__all__ = ["work"]

# Seconds that an idle connection stays open. Longer than clients keep theirs (5 to 60), so that the client ends it: a
# request that meets a server's end on its way is lost, and a POST must not be sent again unasked.
_KEEP_ALIVE: Final = 75
_SHUTDOWN: Final = 2.5  # seconds that telemetry gets to leave; the process ends within 5 in any case


def work(options: Options, settings: Settings, listener: socket.socket) -> None:
    """Load the model and serve it on ``listener`` until a signal comes.

    Raises:
        EngineFailed: the engine is broken, or its device lost. What was in flight has its answer, and only a new
            process can serve again.
    """
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    say = Say(options.as_json)
    engine = _engine(options, settings, say)
    handle = configure(options.service_name)
    try:
        with keys_on_hangup():
            _Server(_config(options, engine), _url(options.host, listener), engine, say).run(sockets=[listener])
        if engine.broken is not None:
            what = "the engine is broken" if engine.poisoned is None else "the device is lost to this process"
            raise EngineFailed(f"{what}, so that another has to be started: {engine.broken}")
    finally:
        handle.shutdown(timeout=_SHUTDOWN)
        LEAVING.quick = True


def _engine(options: Options, settings: Settings, say: Say) -> TransformersEngine:
    if options.threads:
        torch.set_num_threads(options.threads)
    loaded = load(options.model, cache_dir=settings.cache_dir, progress=Progress(say))
    return TransformersEngine(
        loaded.model,
        loaded.tokenizer,
        window=options.window,
        when_full=cast("Literal['turns', 'slide', 'reject']", options.when_full),
        rows=options.rows,
        name=options.name or loaded.name,
        model_max=loaded.model_max,
        eos_ids=loaded.eos_ids,
        pressure=PressureLimits(ttft=options.ttft_target),
        capture_content=settings.capture_content,
    )


def _config(options: Options, engine: TransformersEngine) -> uvicorn.Config:
    extra: dict[str, Any] = {}
    if "reset_contextvars" in inspect.signature(uvicorn.Config).parameters:
        # Else a connection hands the Context of its first request to all the later ones.
        extra["reset_contextvars"] = True
    return uvicorn.Config(
        unflushed(app(engine)),  # work() delivers, when all is over
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(options.drain)),
        server_header=False,
        ws="none",
        **extra,
    )


class _Server(uvicorn.Server):
    """Says where it is once it can be used."""

    def __init__(self, config: uvicorn.Config, url: str, engine: TransformersEngine, say: Say) -> None:
        super().__init__(config)
        self._url = url
        self._engine = engine
        self._say = say

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        name, window, url = self._engine.name, self._engine.window, f"{self._url}/v1"
        text = f"ready: {name} with a window of {window} tokens at {url}"
        self._say("ready", text, url=url, model=name, window=window)

    async def on_tick(self, counter: int) -> bool:
        # What is in flight has been told; for what comes next there must be another process.
        return await super().on_tick(counter) or self._engine.broken is not None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with handled(self.handle_exit):
            yield


def _url(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"
