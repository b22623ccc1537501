"""Where the demo's telemetry goes, and where it is read back from."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otelctx.demo.sources import Embedded, Jaeger, Source
from otelctx.testing import backends
from otelctx.testing.jaeger import JaegerQuery
from otelctx.testing.receiver import OtlpReceiver

__all__ = ["ENDPOINT", "Backstage", "embedded", "external", "own_jaeger"]

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"


@dataclass(frozen=True, slots=True)
class Backstage:
    """``environment`` sends the processes' telemetry to ``source``; ``receiver`` is there if it is embedded.

    ``link`` gives the page of a trace, if somebody shows one; ``inherit`` says that the user's own ``OTEL_*`` variables
    count. ``within`` is how long a trace may take to arrive, in seconds.
    """

    environment: Mapping[str, str]
    source: Source
    within: float
    receiver: OtlpReceiver | None = None
    link: Callable[[str], str] | None = None
    inherit: bool = False


def _to(endpoint: str) -> dict[str, str]:
    return {ENDPOINT: endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}


@asynccontextmanager
async def embedded() -> AsyncIterator[Backstage]:
    """A receiver in this process: nothing to install."""
    with OtlpReceiver() as receiver:
        yield Backstage(_to(receiver.endpoint), Embedded(receiver), 20.0, receiver)


@asynccontextmanager
async def own_jaeger() -> AsyncIterator[Backstage]:
    """The real collector and the real Jaeger, started for this run.

    Raises :class:`~otelctx.errors.ConfigError` if they are not built.
    """
    with tempfile.TemporaryDirectory(prefix="otelctx-demo-") as folder:
        storage = await asyncio.to_thread(backends.Jaeger, Path(folder))
        try:
            collector = await asyncio.to_thread(backends.Collector, Path(folder), storage.otlp)
            try:
                query = storage.query
                yield Backstage(_to(collector.endpoint), Jaeger(query), 40.0, link=query.link)
            finally:
                await asyncio.to_thread(collector.close)
        finally:
            await asyncio.to_thread(storage.close)


@asynccontextmanager
async def external(jaeger_url: str) -> AsyncIterator[Backstage]:
    """Wherever the user's own ``OTEL_*`` variables say; read back from the Jaeger at ``jaeger_url``.

    Raises :class:`~otelctx.errors.ConfigError` if that does not answer.
    """
    query = JaegerQuery(jaeger_url)
    await asyncio.to_thread(query.ready)
    yield Backstage({ENDPOINT: os.environ[ENDPOINT]}, Jaeger(query), 90.0, link=query.link, inherit=True)
