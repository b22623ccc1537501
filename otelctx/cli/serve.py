"""``otelctx serve``: one model behind OpenAI's API, in this process."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import torch
import uvicorn

from otelctx.errors import ConfigError
from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import load
from otelctx.sdk.configure import configure
from otelctx.serving.application import app
from otelctx.settings import Settings

__all__ = ["Options", "run"]

_SHUTDOWN: Final = 3.0  # seconds that telemetry gets to leave
_HINTS: Final = {
    errno.EADDRINUSE: "the port is taken: stop what listens there, or choose another with --port (0 takes a free one)",
    errno.EACCES: "ports below 1024 need privileges: choose another with --port",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose another with --host",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said. ``window`` in tokens, ``drain`` in seconds; ``threads`` 0 leaves it to torch."""

    model: str
    host: str
    port: int
    window: int
    rows: int
    when_full: str
    name: str | None
    service_name: str
    threads: int
    drain: float


def run(options: Options) -> None:
    """Serve until SIGTERM or SIGINT. Raises :class:`~otelctx.errors.ConfigError` for what can't be started."""
    # The port first: it would be a pity to learn that it is taken only once the model is loaded.
    with _listener(options.host, options.port) as listener:
        settings = Settings.load()
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
        engine = _engine(options, settings)
        handle = configure(options.service_name)
        try:
            _serve(options, engine, listener)
        finally:
            handle.shutdown(timeout=_SHUTDOWN)


def _serve(options: Options, engine: TransformersEngine, listener: socket.socket) -> None:
    config = uvicorn.Config(
        app(engine),
        # A warm connection must not hand the Context of its first request to the later ones.
        **_reset_contextvars(),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=max(1, round(options.drain)),
        server_header=False,
        ws="none",
    )
    _Server(config, f"{_url(options.host, listener)}/v1", engine).run(sockets=[listener])


def _reset_contextvars() -> dict[str, Any]:
    known = uvicorn.Config.__init__.__annotations__
    return {"reset_contextvars": True} if "reset_contextvars" in known else {}


class _Server(uvicorn.Server):
    """Says where it is once it can be used."""

    def __init__(self, config: uvicorn.Config, url: str, engine: TransformersEngine) -> None:
        super().__init__(config)
        self._url = url
        self._engine = engine

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own raises the signal once more when the server is down, and telemetry would never be sent.
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        say(f"ready: {self._engine.name} with a window of {self._engine.window} tokens at {self._url}")


def _engine(options: Options, settings: Settings) -> TransformersEngine:
    if options.threads:
        torch.set_num_threads(options.threads)
    loaded = load(options.model, cache_dir=settings.cache_dir, progress=_progress)
    return TransformersEngine(
        loaded.model,
        loaded.tokenizer,
        window=options.window,
        when_full=cast("Literal['turns', 'reject']", options.when_full),
        rows=options.rows,
        name=options.name or loaded.name,
        model_max=loaded.model_max,
        eos_ids=loaded.eos_ids,
    )


def say(text: str) -> None:
    """One line for whoever watches. Flushed, since it may be a program."""
    print(f"otelctx: {text}", flush=True)


_told: dict[str, int] = {}


def _progress(text: str, share: float | None) -> None:
    """Each step once, and then every quarter of it."""
    step = -1 if share is None else int(share * 4)
    if _told.get(text, -2) >= step:
        return
    _told[text] = step
    say(text if share is None else f"{text}: {step * 25} %")


@contextmanager
def _listener(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket that doesn't listen yet, so that nobody's request waits for the model."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except socket.gaierror as error:
            raise ConfigError(f"--host {host}: {error.strerror}") from None
        except OSError as error:
            hint = _HINTS.get(error.errno or 0, error.strerror or str(error))
            raise ConfigError(f"can't listen on {host}:{port}: {hint}") from None
        yield listener


def _url(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"
