"""The three global providers: those that are set already, or new ones from the SDK's own configurator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final

from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from otelctx.errors import ConfigError
from otelctx.sdk.environment import defaults
from otelctx.sdk.pipeline import Signal

__all__ = ["Provider", "disabled", "existing", "provide"]

# signal → (its global provider, the variable that names its exporters)
_SIGNALS: Final[dict[Signal, tuple[Callable[[], Any], str]]] = {
    "traces": (lambda: trace.get_tracer_provider(), "OTEL_TRACES_EXPORTER"),
    "metrics": (lambda: metrics.get_meter_provider(), "OTEL_METRICS_EXPORTER"),
    "logs": (lambda: _logs.get_logger_provider(), "OTEL_LOGS_EXPORTER"),
}
_GLOBALS: Final = ("opentelemetry.trace", "opentelemetry.metrics._internal", "opentelemetry._logs._internal")
# Exporters that are packages of their own; what is said where OTEL_*_EXPORTER names one that isn't there.
_PACKAGES: Final = {
    "otlp": "otelctx[sdk]",
    "prometheus": "opentelemetry-exporter-prometheus",
    "zipkin": "opentelemetry-exporter-zipkin",
}


@dataclass(frozen=True, slots=True)
class Provider:
    """One signal's global provider, the variable that names its exporters, and whether it is ours to shut down."""

    signal: Signal
    get: Callable[[], Any]
    ours: bool
    variable: str = ""


class _Configurator(_OTelSDKConfigurator):
    """The SDK asks distributions to subclass its configurator; it adds nothing."""


def _real(provider: object) -> bool:
    # The API's stand-ins until a provider is set; two of the three have no public name.
    return "Proxy" not in type(provider).__name__


def disabled() -> bool:
    """Whether the SDK is switched off, as it says itself: its providers then make nothing."""
    probe = TracerProvider(resource=Resource.get_empty(), shutdown_on_exit=False)
    return isinstance(probe.get_tracer("otelctx"), trace.NoOpTracer)


def existing() -> list[Provider]:
    """The global providers as they are."""
    return [Provider(signal, get, ours=False, variable=variable) for signal, (get, variable) in _SIGNALS.items()]


def provide(service_name: str | None) -> list[Provider]:
    """Reuse the global providers that are set, make the others. ``OTEL_SERVICE_NAME`` goes before ``service_name``.

    Exporters default to OTLP over gRPC. Everything else, ``OTEL_CONFIG_FILE`` included, is read by the SDK; a signal
    that such a file leaves out has no provider. Raises :class:`~otelctx.errors.ConfigError` if a named exporter isn't
    installed, or if the SDK refuses what it reads.
    """
    before = {signal: _real(get()) for signal, (get, _) in _SIGNALS.items()}
    if not all(before.values()):
        values = {variable: "otlp" for _, variable in _SIGNALS.values()}
        values["OTEL_EXPORTER_OTLP_PROTOCOL"] = "grpc"
        if service_name is not None:
            values["OTEL_SERVICE_NAME"] = service_name
        # What is set already must not get a second exporter from a provider that nobody will see.
        forced = {variable: "none" for signal, (_, variable) in _SIGNALS.items() if before[signal]}
        with defaults(values, forced), _unset_only():
            _configure()
    return [
        Provider(signal, get, ours=not before[signal] and _real(get()), variable=variable)
        for signal, (get, variable) in _SIGNALS.items()
    ]


def _configure() -> None:
    configurator: Any = _Configurator  # untyped
    try:
        configurator().configure()
    except Exception as error:
        raise ConfigError(f"the OpenTelemetry SDK can't be set up: {error}{_hint(str(error))}") from error


def _hint(error: str) -> str:
    for group in ("traces", "metrics", "logs"):
        if f"opentelemetry_{group}_exporter" in error:
            name = error.split("'")[1] if "'" in error else ""
            package = next((package for known, package in _PACKAGES.items() if name.startswith(known)), None)
            there = sorted({e.name for e in entry_points(group=f"opentelemetry_{group}_exporter")} | {"none", "otlp"})
            install = f"pip install '{package}'" if package else "install the package that brings it"
            return f". OTEL_{group.upper()}_EXPORTER takes {', '.join(there)}; for {name!r}, {install}"
    if "OTLP protocol" in error:
        return ". OTEL_EXPORTER_OTLP_PROTOCOL takes grpc and http/protobuf"
    return ""


@contextmanager
def _unset_only() -> Iterator[None]:
    """The configurator sets all three; that the set ones stay as they are is wanted, and no warning."""

    def expected(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Overriding of current")

    for name in _GLOBALS:
        logging.getLogger(name).addFilter(expected)
    try:
        yield
    finally:
        for name in _GLOBALS:
            logging.getLogger(name).removeFilter(expected)
