"""Real backends for the whole run. What is missing is skipped, loudly; OTELCTX_E2E=required makes that a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from otelctx.errors import ConfigError
from otelctx.testing.backends import Collector, Jaeger


@pytest.fixture(scope="session")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jaeger]:
    try:
        backend = Jaeger(tmp_path_factory.mktemp("jaeger"))
    except ConfigError as exc:
        pytest.skip(f"NO JAEGER: {exc}")
    with backend:
        yield backend


@pytest.fixture(scope="session")
def start_collector(jaeger: Jaeger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Collector]]:
    """Start a collector in front of the run's Jaeger, with ``sampling_percentage`` of the plain traces kept."""
    with ExitStack() as stack:

        def start(**options: float) -> Collector:
            folder: Path = tmp_path_factory.mktemp("collector")
            try:
                backend = Collector(folder, jaeger.otlp, **options)
            except ConfigError as exc:
                pytest.skip(f"NO COLLECTOR: {exc}")
            stack.enter_context(backend)
            return backend

        yield start


@pytest.fixture(scope="session")
def collector(start_collector: Callable[..., Collector]) -> Collector:
    """A collector that keeps every trace."""
    return start_collector()
