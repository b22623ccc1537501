"""The three global providers: those that are set already, or new ones from the SDK's own configurator."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk import _configuration
from opentelemetry.sdk._configuration import _OTelSDKConfigurator

from otelctx.errors import ConfigError
from otelctx.sdk.environment import defaults
from otelctx.sdk.watch import Watch

__all__ = ["Provider", "provide"]

# signal → (its global provider, the variable that names its exporters)
_SIGNALS: Final[dict[str, tuple[Callable[[], Any], str]]] = {
    "traces": (lambda: trace.get_tracer_provider(), "OTEL_TRACES_EXPORTER"),
    "metrics": (lambda: metrics.get_meter_provider(), "OTEL_METRICS_EXPORTER"),
    "logs": (lambda: _logs.get_logger_provider(), "OTEL_LOGS_EXPORTER"),
}
_GLOBALS: Final = ("opentelemetry.trace", "opentelemetry.metrics._internal", "opentelemetry._logs._internal")


@dataclass(frozen=True, slots=True)
class Provider:
    """One signal's provider, and whether it is ours to shut down."""

    signal: str
    provider: Any
    ours: bool


class _Configurator(_OTelSDKConfigurator):
    """The SDK asks distributions to subclass its configurator; it adds nothing."""


def _real(provider: object) -> bool:
    # The API's stand-ins until a provider is set; two of the three have no public name.
    return "Proxy" not in type(provider).__name__


def provide(service_name: str | None, watch: Watch) -> list[Provider]:
    """Reuse the global providers that are set, make the others. ``OTEL_SERVICE_NAME`` goes before ``service_name``.

    Exporters default to OTLP over gRPC. Everything else, ``OTEL_CONFIG_FILE`` included, is read by the SDK. Raises
    :class:`~otelctx.errors.ConfigError` if a named exporter isn't installed.
    """
    existing = {signal: _real(get()) for signal, (get, _) in _SIGNALS.items()}
    if not all(existing.values()):
        values = {variable: "otlp" for _, variable in _SIGNALS.values()}
        values["OTEL_EXPORTER_OTLP_PROTOCOL"] = "grpc"
        if service_name is not None:
            values["OTEL_SERVICE_NAME"] = service_name
        # What is set already must not get a second exporter from a provider that nobody will see.
        forced = {variable: "none" for signal, (_, variable) in _SIGNALS.items() if existing[signal]}
        configurator: Any = _Configurator  # untyped
        with defaults(values, forced), _unset_only():
            try:
                configurator().configure(**_hooks(watch))
            except RuntimeError as error:
                raise ConfigError(f"{error}. pip install 'otelctx[sdk]' brings the OTLP exporters") from error
    return [Provider(signal, get(), not existing[signal]) for signal, (get, _) in _SIGNALS.items()]


def _hooks(watch: Watch) -> dict[str, Any]:
    """Those of our hooks that this SDK's configurator knows."""
    known = inspect.signature(_configuration._initialize_components).parameters
    hooks = {"export_span_processor": watch.span_processor, "export_log_record_processor": watch.log_processor}
    return {name: hook for name, hook in hooks.items() if name in known}


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
