"""What ``configure()`` gives back: is telemetry arriving, and an end in bounded time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context

from otelctx.sdk.providers import Provider
from otelctx.sdk.watch import Watch
from otelctx.telemetry.instruments import tracer

__all__ = ["Check", "Handle"]

_log = logging.getLogger(__name__)
CHECK_SPAN: Final = "otelctx.check"
_ITEMS: Final = {"traces": "spans", "logs": "log records"}


@dataclass(frozen=True, slots=True)
class Check:
    """True if a test span has been delivered; ``detail`` says it in words."""

    ok: bool
    detail: str

    def __bool__(self) -> bool:
        return self.ok


class Deliveries:
    """Wakes whoever waits for the outcome of an export."""

    def __init__(self) -> None:
        self._event = Event()
        self.failure: str | None = None
        self.delivered = False

    def arm(self) -> None:
        self._event.clear()
        self.failure, self.delivered = None, False

    def failed(self, message: str) -> None:
        self.failure = message
        self._event.set()

    def settled(self, delivered: bool) -> None:
        if delivered:
            self.delivered = True
        elif self.failure is None:
            self.failure = "the exporter failed"
        self._event.set()

    def flushed(self) -> None:
        self._event.set()

    def wait(self, timeout: float) -> bool:
        return self._event.wait(timeout)


class Handle:
    """Of the process; calling :func:`otelctx.sdk.configure.configure` again gives the same one."""

    def __init__(self, providers: Sequence[Provider], watch: Watch, deliveries: Deliveries) -> None:
        self._providers = {p.signal: p for p in providers}
        self._watch = watch
        self._deliveries = deliveries
        self._lock = Lock()
        self._down = False

    def check(self, timeout: float = 5.0) -> Check:
        """Send a test span and wait until it is delivered or refused, at most ``timeout`` seconds."""
        traces = self._providers["traces"]
        if self._down:
            return Check(False, "telemetry has been shut down")
        if traces.ours and not self._watch.exporters["traces"]:
            return Check(False, "no exporter for traces is configured (OTEL_TRACES_EXPORTER)")
        span = tracer().start_span(CHECK_SPAN, Context())
        sampled = span.get_span_context().trace_flags.sampled
        trace_id = trace.format_trace_id(span.get_span_context().trace_id)
        self._deliveries.arm()
        span.end()
        if not sampled:
            return Check(False, "the test span was not sampled (OTEL_TRACES_SAMPLER), so nothing was sent")

        def flush() -> None:
            getattr(traces.provider, "force_flush", lambda: True)()
            if not traces.ours:  # nothing tells us of its deliveries, only of failures
                self._deliveries.flushed()

        _start(flush, "otelctx-check")
        if not self._deliveries.wait(timeout):
            return Check(False, f"no answer within {timeout:g} s")
        if self._deliveries.failure is not None:
            return Check(False, self._deliveries.failure)
        return Check(True, f"a test span was delivered: trace {trace_id}")

    def shutdown(self, timeout: float = 3.0) -> bool:
        """Flush and shut down the providers that :func:`configure` made, and flush the others.

        Never takes longer than ``timeout`` seconds, even if the collector is gone: what has not left by then is
        dropped, counted and logged. Returns whether all of it was done in time. A second call does nothing.
        """
        with self._lock:
            if self._down:
                return True
            self._down = True
        deadline = monotonic() + timeout
        threads = [_start(_ending(p), f"otelctx-shutdown-{p.signal}") for p in self._providers.values()]
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))
        done = not any(thread.is_alive() for thread in threads)
        lost = {signal: count for signal, count in self._watch.lost().items() if count}
        if lost:
            # Not all of it need be lost: a batch under way may still arrive. It is what nobody has confirmed.
            what = ", ".join(f"{_ITEMS[signal]}: {count}" for signal, count in lost.items())
            _log.warning("telemetry was not delivered before the end: %s", what)
        return done

    def after_fork(self) -> None:
        """In a child: its providers are alive again, and what the parent holds is the parent's."""
        self._lock = Lock()
        self._down = False
        self._watch.clear()


def _ending(provider: Provider) -> Callable[[], Any]:
    name = "shutdown" if provider.ours else "force_flush"
    end: Callable[[], Any] = getattr(provider.provider, name, lambda: None)

    def run() -> None:
        try:
            end()
        except Exception:
            # The SDK raises here what it could not deliver; the counts above say it better.
            _log.debug("%s of the %s provider failed", name, provider.signal, exc_info=True)

    return run


def _start(target: Callable[[], Any], name: str) -> Thread:
    # A daemon, so that the interpreter's own end does not wait for it either.
    thread = Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
