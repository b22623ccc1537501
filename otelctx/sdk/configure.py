"""``otelctx.configure()``: telemetry with one call, by the SDK's own rules."""

from __future__ import annotations

import atexit
import os
from threading import Lock
from typing import TYPE_CHECKING

from opentelemetry import propagate, trace
from opentelemetry.propagators.composite import CompositePropagator

from otelctx.errors import ConfigError
from otelctx.exchange.propagator import OtelctxPropagator
from otelctx.sdk.logs import export_logging
from otelctx.semconv import HEADER
from otelctx.settings import Settings
from otelctx.telemetry import events as telemetry_events

if TYPE_CHECKING:
    from otelctx.sdk.handle import Handle

__all__ = ["configure"]

_lock = Lock()
_handle: Handle | None = None


def configure(
    service_name: str | None = None, *, events: telemetry_events.Mode | None = None, logs: bool = True
) -> Handle:
    """Set up traces, metrics and logs once for the process; a second call gives the same handle.

    Providers that are set already are reused. Otherwise the SDK's configurator makes them from the ``OTEL_*``
    variables, with OTLP over gRPC where those say nothing; ``OTEL_SERVICE_NAME`` goes before ``service_name``. Our
    propagator is added to the global one, never put in its place, and each span gets the ``session.id`` that is current
    where it starts. ``events`` is how context-window events are emitted (``OTELCTX_EVENTS`` by default); ``logs=False``
    leaves the standard library's logging alone.

    Without it, context flows all the same. Raises :class:`~otelctx.errors.ConfigError` if the SDK is not installed, a
    named exporter is missing or a setting is wrong.
    """
    global _handle
    with _lock:
        if _handle is None:
            settings = Settings.load()
            telemetry_events.set_mode(events or settings.events)
            _handle = _set_up(service_name)
            _add_propagator()
            if logs:
                export_logging()
        return _handle


def _set_up(service_name: str | None) -> Handle:
    try:
        from otelctx.sdk.handle import Deliveries, Handle
        from otelctx.sdk.providers import provide
        from otelctx.sdk.quiet import Quiet
        from otelctx.sdk.stamp import stamp_sessions
        from otelctx.sdk.watch import Watch
    except ImportError as error:
        raise ConfigError(f"the OpenTelemetry SDK is missing ({error}): pip install 'otelctx[sdk]'") from error
    deliveries = Deliveries()
    Quiet(deliveries.failed).install()
    watch = Watch(deliveries.settled)
    providers = provide(service_name, watch)
    stamp_sessions(trace.get_tracer_provider())
    handle = Handle(providers, watch, deliveries)
    # Registered after the SDK's own, hence run before them: those wait for half a minute if the collector is gone.
    atexit.register(handle.shutdown)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=handle.after_fork)
    return handle


def _add_propagator() -> None:
    known = propagate.get_global_textmap()
    # OTEL_PROPAGATORS=none means none at all.
    if known.fields and HEADER not in known.fields:
        propagate.set_global_textmap(CompositePropagator([known, OtelctxPropagator()]))
