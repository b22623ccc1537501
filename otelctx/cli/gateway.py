"""``otelctx gateway``: the edge in front of workers, in this process."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Final

from otelctx.cli.rereading import keys_on_hangup
from otelctx.cli.saying import Say
from otelctx.cli.serve import listener
from otelctx.gateway.application import Gateway, app
from otelctx.gateway.head import Limits
from otelctx.gateway.options import Options, Timeouts
from otelctx.gateway.server import EdgeServer, config
from otelctx.sdk.configure import configure

__all__ = ["Listen", "options", "run"]

_SHUTDOWN: Final = 2.5  # seconds that telemetry gets to leave


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen, under which name, how many seconds running requests get at the end, and how to say so."""

    host: str
    port: int
    service_name: str
    drain: float
    as_json: bool = False


def options(
    load_bound: float, timeouts: tuple[float, float, float], health: tuple[str, float], max_body: int
) -> Options:
    """``timeouts``: to connect, to say something, for all (0 for no end); ``health``: path and interval in seconds."""
    connect, read, total = timeouts
    return Options(load_bound, *health, Timeouts(connect, read, read, total or None), Limits(body=max_body))


def run(upstreams: list[str], listen: Listen, chosen: Options) -> None:
    """Serve until SIGTERM or SIGINT. Raises :class:`~otelctx.errors.ConfigError` for what can't be started."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    gateway = app(upstreams, options=chosen)
    with listener(listen.host, listen.port) as bound:
        handle = configure(listen.service_name)
        shown = f"[{listen.host}]" if ":" in listen.host else listen.host
        url = f"http://{shown}:{bound.getsockname()[1]}"
        served = config(gateway)
        try:
            with keys_on_hangup():
                EdgeServer(served, gateway, listen.drain, lambda: _ready(Say(listen.as_json), gateway, url)).run(
                    sockets=[bound]
                )
        finally:
            handle.shutdown(timeout=_SHUTDOWN)


def _ready(say: Say, gateway: Gateway, url: str) -> None:
    names = [upstream.name for upstream in gateway.upstreams]
    say("ready", f"ready: {url} in front of {', '.join(names)}", url=url, upstreams=names)
