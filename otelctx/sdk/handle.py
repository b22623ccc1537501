"""What ``configure()`` gives back: is telemetry arriving, and an end in bounded time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock, Thread
from time import monotonic
from typing import Final

from otelctx.asgi.flush import unanswered
from otelctx.sdk.check import examine
from otelctx.sdk.finding import find_pipelines
from otelctx.sdk.forking import own_connections, own_metrics
from otelctx.sdk.pipeline import Pipeline, Signal
from otelctx.sdk.providers import Provider
from otelctx.sdk.report import Check
from otelctx.sdk.threads import calling, start
from otelctx.telemetry.instruments import instruments

__all__ = ["Handle"]

_log = logging.getLogger(__name__)
_ITEMS: Final[dict[Signal, str]] = {"traces": "spans", "logs": "log records", "metrics": "metric points"}
# Metrics last: they take along what became of the other two.
_ORDER: Final[tuple[tuple[Signal, ...], ...]] = (("traces", "logs"), ("metrics",))
_FIRST: Final = 2 / 3  # of the time, where there is anything to be sent after it


class Handle:
    """Of the process; calling :func:`otelctx.sdk.configure.configure` again gives the same one."""

    def __init__(
        self, providers: Sequence[Provider], *, disabled: bool = False, clock: Callable[[], float] = monotonic
    ) -> None:
        self._providers = {p.signal: p for p in providers}
        self.disabled: Final = disabled
        self._clock = clock
        self._lock = Lock()
        self._down = False
        self._pipelines()  # watched from now on
        instruments()  # made while there is a provider to make them, not by what is counted at the end

    @property
    def down(self) -> bool:
        """Whether :meth:`shutdown` was called."""
        return self._down

    def dropped(self) -> dict[Signal, dict[str, int]]:
        """Items lost so far by signal and reason: ``queue_full``, ``export``, ``shutdown``. Signals that lost nothing
        are left out.
        """
        lost: dict[Signal, dict[str, int]] = {}
        for pipeline in self._pipelines():
            for reason, count in pipeline.dropped.items():
                of_signal = lost.setdefault(pipeline.signal, {})
                of_signal[reason] = of_signal.get(reason, 0) + count
        return lost

    def check(self, timeout: float = 5.0) -> Check:
        """Ask each exporter's collector by an empty request, and send a test span; at most about ``timeout`` seconds.

        Not true unless traces arrive, and nothing else that is configured is refused.
        """
        if self._down:
            return Check(False, "telemetry has been shut down")
        if self.disabled:
            return Check(False, "the OpenTelemetry SDK is disabled (OTEL_SDK_DISABLED): only context flows")
        return examine(self._providers, timeout, self._clock)

    def shutdown(self, timeout: float = 3.0) -> bool:
        """Flush and shut down the providers that :func:`configure` made, and flush the others.

        Never takes longer than ``timeout`` seconds, even if the collector is gone: what has not left by then is
        dropped, counted and logged. Metrics come last, with the counts of what the other two have lost. Where a
        server's end has waited for a collector in vain, it takes a third of that. Returns whether all of it was done in
        time. A second call does nothing.
        """
        with self._lock:
            if self._down:
                return True
            self._down = True
        if any(unanswered(p.get()) for p in self._providers.values()):
            timeout *= 1 - _FIRST
        end = self._clock() + timeout
        pipelines = self._pipelines()
        threads: list[Thread] = []
        for signals in _ORDER:
            last = signals == _ORDER[-1] or not any(p.signal in _ORDER[-1] for p in pipelines)
            until = end if last else end - timeout * (1 - _FIRST)
            ending = [p for p in map(self._providers.get, signals) if p is not None]
            started = [start(_ending(p), f"otelctx-shutdown-{p.signal}") for p in ending]
            for thread in started:
                thread.join(max(0.0, until - self._clock()))
            threads += started
            for pipeline in pipelines:
                if pipeline.signal in signals and self._providers[pipeline.signal].ours:
                    pipeline.close()
        self._report()
        return not any(thread.is_alive() for thread in threads)

    def after_fork(self) -> None:
        """In a child: connections and counts of its own. What the parent holds is the parent's."""
        self._lock = Lock()
        for pipeline in self._pipelines():
            own_connections(pipeline)
        if metrics := self._providers.get("metrics"):
            own_metrics(metrics.get())

    def _pipelines(self) -> list[Pipeline]:
        # Looked for anew: a provider may be set, and a processor added, at any time.
        return [pipeline for p in self._providers.values() for pipeline in find_pipelines(p.signal, p.get())]

    def _report(self) -> None:
        lost = self.dropped()
        if lost:
            what = ", ".join(f"{_ITEMS[signal]}: {sum(counts.values())}" for signal, counts in lost.items())
            # Not all of it need be lost: a batch under way may still arrive. It is what nobody has confirmed.
            _log.warning("telemetry was not delivered before the end: %s", what)


def _ending(provider: Provider) -> Callable[[], None]:
    return calling(provider.get(), "shutdown" if provider.ours else "force_flush")
