"""Where the telemetry of requests goes, and whether anybody keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import metrics as otel_metrics
from opentelemetry import trace
from opentelemetry.metrics import MeterProvider, NoOpHistogram
from opentelemetry.trace import NoOpTracer, ProxyTracer

from otelctx.telemetry.instruments import Instruments, instruments, is_early, tracer
from otelctx.telemetry.sampler import EVERYTHING, Dropped, dropped

__all__ = ["Outlet", "Sinks", "sinks"]


@dataclass(frozen=True, slots=True)
class Sinks:
    """``deaf`` to spans, ``mute`` for measurements: nobody keeps them, since there is no SDK, it is disabled, or they
    are not wanted. ``drops``: which spans the sampler is known to drop. ``passes``: nothing is kept of any request.
    """

    tracer: trace.Tracer
    instruments: Instruments
    deaf: bool
    mute: bool
    drops: Dropped
    passes: bool


def sinks(
    tracer_provider: trace.TracerProvider | None, meter_provider: MeterProvider | None, *, metrics: bool = True
) -> Sinks:
    """:func:`tracer` and :func:`instruments` at once, of the given providers or of those that are global now."""
    own, made = tracer(tracer_provider), instruments(meter_provider)
    # A proxy that somebody has kept forwards to what is set later; the global one is replaced then.
    deaf = isinstance(own, NoOpTracer) or (tracer_provider is None and isinstance(own, ProxyTracer))
    mute = isinstance(made.http_server_duration, NoOpHistogram) or (meter_provider is None and is_early(made))
    drops = EVERYTHING if deaf else dropped(own)
    mute = mute or not metrics
    return Sinks(own, made, deaf, mute, drops, passes=mute and drops.all)


# Where the API keeps the global providers. To ask it takes longer than all else that is done for a request of which
# nothing is recorded: as long as none is set, it looks into the environment each time.
_ask_tracers: Final = trace.get_tracer_provider
_ask_meters: Final = otel_metrics.get_meter_provider
_tracers: Final[dict[str, Any]] = getattr(_ask_tracers, "__globals__", {})
_meters: Final[dict[str, Any]] = getattr(_ask_meters, "__globals__", {})
_TRACERS: Final = "_TRACER_PROVIDER"
_METERS: Final = "_METER_PROVIDER"
_SEEN: Final = _TRACERS in _tracers and _METERS in _meters


class Outlet:
    """The sinks of one middleware: looked up again only if a global provider may have been set since. ``fixed``: those
    that no provider set later changes, once they are known."""

    __slots__ = ("_asks", "_found", "_meter_provider", "_meters", "_metrics", "_tracer_provider", "_tracers", "fixed")

    def __init__(
        self, tracer_provider: trace.TracerProvider | None, meter_provider: MeterProvider | None, *, metrics: bool
    ) -> None:
        self._metrics = metrics
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._asks = tracer_provider is None or meter_provider is None
        self._found: Sinks | None = None
        self.fixed: Sinks | None = None
        self._tracers: object = None
        self._meters: object = None

    def now(self) -> Sinks:
        """The sinks at this moment."""
        found = self._found
        if (
            found is not None
            and _tracers[_TRACERS] is self._tracers
            and _meters[_METERS] is self._meters
            and trace.get_tracer_provider is _ask_tracers
            and otel_metrics.get_meter_provider is _ask_meters
        ):
            return found
        return self.fixed or self._look()

    def _look(self) -> Sinks:
        if not self._asks:
            found = self._sinks()
            if not isinstance(found.tracer, ProxyTracer):  # through one, another tracer is had later
                self.fixed = found
            return found
        if not _SEEN:
            return self._sinks()
        trace.get_tracer_provider()  # either may make the provider that the environment names
        otel_metrics.get_meter_provider()
        before = _tracers[_TRACERS], _meters[_METERS]
        found = self._sinks()
        if self._tracer_provider is None or not isinstance(found.tracer, ProxyTracer):
            self._tracers, self._meters = before
            self._found = found
        return found

    def _sinks(self) -> Sinks:
        return sinks(self._tracer_provider, self._meter_provider, metrics=self._metrics)
