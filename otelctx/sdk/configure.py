"""``otelctx.configure()``: telemetry with one call, by the SDK's own rules."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.util
import os
import signal
from threading import Lock, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Final

from opentelemetry import propagate, trace
from opentelemetry.propagators.composite import CompositePropagator

from otelctx.asgi.flush import flush_with_uvicorn
from otelctx.errors import ConfigError
from otelctx.exchange.propagator import OtelctxPropagator
from otelctx.semconv import HEADER
from otelctx.settings import Settings
from otelctx.telemetry import events as telemetry_events
from otelctx.telemetry.instruments import after_fork

if TYPE_CHECKING:
    from otelctx.sdk.handle import Handle

__all__ = ["configure"]

_log = logging.getLogger(__name__)
_AT_SIGTERM: Final = 4.0  # seconds: more than shutdown() takes
_lock = Lock()
_handle: Handle | None = None
_name: str | None = None


def configure(
    service_name: str | None = None,
    *,
    events: telemetry_events.Mode | None = None,
    logs: bool = True,
    log_level: int | str | None = None,
) -> Handle:
    """Set up traces, metrics and logs once for the process; a second call gives the same handle.

    Providers that are set already are reused. Otherwise the SDK's configurator makes them from the ``OTEL_*``
    variables, with OTLP over gRPC where those say nothing; ``OTEL_SERVICE_NAME`` goes before ``service_name``. Our
    propagator is added to the global one, never put in its place, and each span gets the ``session.id`` that is current
    where it starts. ``events`` is how context-window events are emitted: ``OTELCTX_EVENTS`` by default, and to be
    changed by a later call. ``logs=False`` leaves the standard library's logging alone, and ``log_level``, such as
    ``"WARNING"``, exports from there upwards.

    At the end of the process what waits is delivered, at SIGTERM too unless the application handles that itself. With
    ``OTEL_SDK_DISABLED=true`` there are no providers. Without ``configure()``, context flows all the same. Raises
    :class:`~otelctx.errors.ConfigError` if the SDK is not installed, a named exporter is missing or a setting is wrong.
    """
    global _handle, _name
    with _lock:
        if _handle is None:
            settings = Settings.load()
            _set_events(events or settings.events)
            if isinstance(log_level, str) and log_level.upper() not in logging.getLevelNamesMapping():
                raise ConfigError(f"log_level is {log_level!r}; it takes {', '.join(logging.getLevelNamesMapping())}")
            _handle, _name = _set_up(service_name), service_name
            _add_propagator()
            if logs:
                _export_logging(log_level)
        elif _handle.down:
            _log.warning("telemetry has been shut down; OpenTelemetry takes no second provider in a process")
        elif not _handle.disabled:
            if events is not None:  # zero code may have been first, and knows nothing of it
                _set_events(events)
            _at_sigterm(_handle)  # a server of workers may have taken it away
            if service_name in (None, _name):
                return _handle
            _log.warning("configure(%r) does nothing: this process is configured as %r", service_name, _name)
        return _handle


def _set_events(mode: telemetry_events.Mode) -> None:
    try:
        telemetry_events.set_mode(mode)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _set_up(service_name: str | None) -> Handle:
    try:
        from otelctx.sdk.handle import Handle
        from otelctx.sdk.pipeline import failing
        from otelctx.sdk.providers import disabled, existing, provide
        from otelctx.sdk.quiet import Quiet
        from otelctx.sdk.stamp import stamp_sessions
    except ImportError as error:
        raise ConfigError(f"the OpenTelemetry SDK is missing ({error}): pip install 'otelctx[sdk]'") from error
    if disabled():
        return Handle(existing(), disabled=True)
    Quiet(failing).install()
    providers = provide(service_name)
    stamp_sessions(trace.get_tracer_provider())
    handle = Handle(providers)
    _at_exit(handle)
    return handle


def _at_exit(handle: Handle) -> None:
    # Registered after the SDK's own, hence run before them: those wait for half a minute if the collector is gone.
    atexit.register(handle.shutdown)
    _at_sigterm(handle)
    if multiprocessing.parent_process() is not None:
        _at_end_of_child(handle)
    # Children of multiprocessing forget what was registered before, and end without the interpreter's own end.
    multiprocessing.util.register_after_fork(handle, _at_end_of_child)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def _at_sigterm(handle: Handle) -> None:
    """Let SIGTERM end the process as before, but with its telemetry delivered: it skips the interpreter's own end, also
    under uvicorn, which raises it once more when it has ended gracefully. Where anybody handles it, that stays so; a
    uvicorn that has begun to, as it does before it imports what it serves, flushes at its end.
    """
    if current_thread() is not main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        flush_with_uvicorn()
        return

    def end(number: int, frame: object) -> None:
        # In a thread: what was interrupted here may hold a lock that the SDK wants.
        thread = Thread(target=handle.shutdown, daemon=True)
        thread.start()
        thread.join(_AT_SIGTERM)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, end)


def _at_end_of_child(handle: Handle) -> None:
    # The lowest of priorities: after whatever the application has registered.
    multiprocessing.util.Finalize(handle, handle.shutdown, exitpriority=-(2**31))


def _after_fork() -> None:
    global _lock
    _lock = Lock()
    if _handle is not None:
        after_fork()
        _handle.after_fork()


def _export_logging(level: int | str | None) -> None:
    from otelctx.sdk.logs import export_logging

    export_logging(level.upper() if isinstance(level, str) else level)


def _add_propagator() -> None:
    known = propagate.get_global_textmap()
    # OTEL_PROPAGATORS=none means none at all.
    if known.fields and HEADER not in known.fields:
        propagate.set_global_textmap(CompositePropagator([known, OtelctxPropagator()]))
