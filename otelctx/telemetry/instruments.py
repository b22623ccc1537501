"""One set of instruments per ``MeterProvider``, made from the table in :mod:`otelctx.semconv`.

One set, because a second observable of the same name is lost without a word. Nothing is made on the API's proxy
provider: what was asked for before a real one is set forwards to whichever is current when it is used.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from threading import Lock, RLock
from typing import Any, Final

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import (
    CallbackOptions,
    Counter,
    Histogram,
    Meter,
    MeterProvider,
    Observation,
)

import otelctx.semconv as semconv
from otelctx.semconv import EVENTS, METRICS

__all__ = [
    "ActiveRequests",
    "FrameTally",
    "Instruments",
    "after_fork",
    "instruments",
    "is_early",
    "observe_arena",
    "observe_fragmentation",
    "observe_kv",
    "observe_pressure",
    "observe_sessions",
    "observe_upstreams",
    "tracer",
]

NAME: Final = "otelctx"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

Attributes = Mapping[str, Any] | None


class ActiveRequests:
    """Requests in flight, by (method, scheme).

    A set of tokens and no number: adding to and removing from a set are atomic, so that no lock is taken on the
    request path, and a token removed twice does not make the count wrong.
    """

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], set[object]] = {}

    def bucket(self, method: str, scheme: str) -> set[object]:
        """Where a request puts a token of its own while it runs. ``method`` must be one of the known ones."""
        key = (method, scheme)
        found = self._running.get(key)
        return found if found is not None else self._running.setdefault(key, set())

    def clear(self) -> None:
        """Forget them: in a forked child, none of them is its own."""
        self._running.clear()

    def observe(self, options: CallbackOptions) -> Iterable[Observation]:
        for (method, scheme), running in list(self._running.items()):
            yield Observation(
                len(running), {semconv.HTTP_REQUEST_METHOD: method, semconv.URL_SCHEME: scheme}, context=Context()
            )


class FrameTally:
    """Frames and acks by (kind, direction): how many, and how many header bytes.

    Observed like the active requests, since two counters cost a request more than reading the frame does.
    """

    __slots__ = ("_counts", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}

    def add(self, kind: str, direction: str, size: int) -> None:
        with self._lock:
            frames, octets = self._counts.get((kind, direction), (0, 0))
            self._counts[kind, direction] = (frames + 1, octets + size)

    def clear(self) -> None:
        """Count from nothing, in a forked child whose parent goes on to report what was counted so far."""
        self._lock = Lock()
        self._counts = {}

    def frames(self, options: CallbackOptions) -> Iterable[Observation]:
        return self._observe(0)

    def octets(self, options: CallbackOptions) -> Iterable[Observation]:
        return self._observe(1)

    def _observe(self, column: int) -> Iterable[Observation]:
        with self._lock:
            counts = list(self._counts.items())
        for (kind, direction), values in counts:
            point = {semconv.FRAME_KIND: kind, semconv.FRAME_DIRECTION: direction}
            yield Observation(values[column], point, context=Context())


class _Deferred:
    """A counter or histogram for code that asked before a provider was set; it forwards to the current set."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def _current(self) -> Any:
        found = instruments().by_name[self._name]
        return None if isinstance(found, _Deferred) else found

    def add(self, amount: float, attributes: Attributes = None, context: Context | None = None) -> None:
        if (real := self._current()) is not None:
            real.add(amount, attributes, context)

    def record(self, amount: float, attributes: Attributes = None, context: Context | None = None) -> None:
        if (real := self._current()) is not None:
            real.record(amount, attributes, context)


class Instruments:
    """The synchronous instruments by attribute, and every one of them in ``by_name``; get it by :func:`instruments`."""

    def __init__(self, by_name: Mapping[str, Any], active: ActiveRequests, tally: FrameTally) -> None:
        self.by_name: Final = by_name
        self.active: Final = active
        self.tally: Final = tally
        self.http_server_duration: Histogram = by_name[semconv.HTTP_SERVER_DURATION]
        self.http_server_request_size: Histogram = by_name[semconv.HTTP_SERVER_REQUEST_SIZE]
        self.http_server_response_size: Histogram = by_name[semconv.HTTP_SERVER_RESPONSE_SIZE]
        self.http_client_duration: Histogram = by_name[semconv.HTTP_CLIENT_DURATION]
        self.rpc_server_duration: Histogram = by_name[semconv.RPC_SERVER_DURATION]
        self.rpc_client_duration: Histogram = by_name[semconv.RPC_CLIENT_DURATION]
        self.request_duration: Histogram = by_name[semconv.REQUEST_DURATION]
        self.time_to_first_token: Histogram = by_name[semconv.TIME_TO_FIRST_TOKEN]
        self.time_per_output_token: Histogram = by_name[semconv.TIME_PER_OUTPUT_TOKEN]
        self.requests: Counter = by_name[semconv.REQUESTS]
        self.window_tokens: Histogram = by_name[semconv.WINDOW_TOKENS]
        self.kv_tokens: Counter = by_name[semconv.KV_TOKENS]
        self.session_lookups: Counter = by_name[semconv.SESSION_LOOKUPS]
        self.late: Counter = by_name[semconv.EVENTS_LATE]
        self.mistyped: Counter = by_name[semconv.MISTYPED]
        self.telemetry_dropped: Counter = by_name[semconv.TELEMETRY_DROPPED]
        self.gateway_retries: Counter = by_name[semconv.GATEWAY_RETRIES]
        self.gateway_ejections: Counter = by_name[semconv.GATEWAY_EJECTIONS]

    def event_counter(self, name: str) -> Counter:
        """The counter of event ``name``. Raises ``KeyError`` for a name that is not in ``semconv.EVENTS``."""
        counter: Counter = self.by_name[EVENTS[name].counter]
        return counter


# What the process reports of its arenas and session stores; it outlives any one provider.
_arenas: dict[object, Callable[[], Mapping[str, int]]] = {}
_rooms: dict[object, Callable[[], tuple[int, int]]] = {}
_kv: dict[object, Callable[[], Mapping[str, int]]] = {}
_pressures: dict[object, Callable[[], tuple[int, Mapping[Any, float]]]] = {}
_sessions: dict[object, Callable[[], int]] = {}
_upstreams: dict[object, Callable[[], Iterable[tuple[Mapping[str, Any], int, int]]]] = {}


def _observe(registry: dict[object, Any], callback: object) -> Callable[[], None]:
    key = object()
    registry[key] = callback

    def remove() -> None:
        registry.pop(key, None)

    return remove


def observe_arena(callback: Callable[[], Mapping[str, int]]) -> Callable[[], None]:
    """Report arena pages: ``callback() -> {state: pages}``, such as ``{"used": 3, "free": 61}``; several are added up.

    Returns a function that ends it.
    """
    return _observe(_arenas, callback)


def observe_fragmentation(callback: Callable[[], tuple[int, int]]) -> Callable[[], None]:
    """Report how much of the arena's used pages is empty: ``callback() -> (tokens held, tokens that the pages in use
    could hold)``; of several the share of them all. Returns a function that ends it."""
    return _observe(_rooms, callback)


def observe_kv(callback: Callable[[], Mapping[str, int]]) -> Callable[[], None]:
    """Report KV memory: ``callback() -> {state: bytes}``; several are added up. Returns a function that ends it."""
    return _observe(_kv, callback)


def observe_pressure(callback: Callable[[], tuple[int, Mapping[Any, float]]]) -> Callable[[], None]:
    """Report pressure: ``callback() -> (level, {signal: value})``; of several the highest. Returns a function that
    ends it."""
    return _observe(_pressures, callback)


def observe_sessions(callback: Callable[[], int]) -> Callable[[], None]:
    """Report sessions in memory: ``callback() -> count``; several are added up. Returns a function that ends it."""
    return _observe(_sessions, callback)


def _read_states(
    registry: dict[object, Callable[[], Mapping[str, int]]], key: str
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(options: CallbackOptions) -> Iterable[Observation]:
        total: dict[str, int] = {}
        for callback in list(registry.values()):
            for state, count in callback().items():
                total[state] = total.get(state, 0) + count
        for state, count in total.items():
            yield Observation(count, {key: state}, context=Context())

    return read


def observe_upstreams(callback: Callable[[], Iterable[tuple[Mapping[str, Any], int, int]]]) -> Callable[[], None]:
    """Report a gateway's upstreams: ``callback() -> (attributes, running requests, 1 if up else 0)`` of each.

    Returns a function that ends it.
    """
    return _observe(_upstreams, callback)


def _read_upstreams(column: int) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(options: CallbackOptions) -> Iterable[Observation]:
        for callback in list(_upstreams.values()):
            for attributes, *values in callback():
                yield Observation(values[column], dict(attributes), context=Context())

    return read


def _read_level(options: CallbackOptions) -> Iterable[Observation]:
    if _pressures:
        yield Observation(max(callback()[0] for callback in list(_pressures.values())), context=Context())


def _read_signals(options: CallbackOptions) -> Iterable[Observation]:
    highest: dict[str, float] = {}
    for callback in list(_pressures.values()):
        for signal, value in callback()[1].items():
            highest[signal] = max(value, highest.get(signal, 0.0))
    for signal, value in highest.items():
        yield Observation(value, {semconv.PRESSURE_SIGNAL: signal}, context=Context())


def _read_fragmentation(options: CallbackOptions) -> Iterable[Observation]:
    if _rooms:
        held, room = map(sum, zip(*(callback() for callback in list(_rooms.values())), strict=True))
        # The two are read one after the other while a session may come or go.
        yield Observation(max(0.0, 1 - held / room) if room else 0.0, context=Context())


def _read_sessions(options: CallbackOptions) -> Iterable[Observation]:
    if _sessions:
        yield Observation(sum(callback() for callback in list(_sessions.values())), context=Context())


def _make(meter: Meter) -> Instruments:
    active, tally = ActiveRequests(), FrameTally()
    observers: dict[str, Callable[[CallbackOptions], Iterable[Observation]]] = {
        semconv.HTTP_SERVER_ACTIVE: active.observe,
        semconv.FRAMES: tally.frames,
        semconv.FRAME_BYTES: tally.octets,
        semconv.ARENA_PAGES: _read_states(_arenas, semconv.ARENA_STATE),
        semconv.ARENA_FRAGMENTATION: _read_fragmentation,
        semconv.KV_BYTES: _read_states(_kv, semconv.KV_STATE),
        semconv.PRESSURE_LEVEL: _read_level,
        semconv.PRESSURE_RATIO: _read_signals,
        semconv.SESSIONS: _read_sessions,
        semconv.GATEWAY_ACTIVE: _read_upstreams(0),
        semconv.GATEWAY_UP: _read_upstreams(1),
    }
    made: dict[str, Any] = {}
    for name, m in METRICS.items():
        if m.kind == "counter" and name in observers:
            made[name] = meter.create_observable_counter(name, [observers[name]], m.unit, m.brief)
        elif m.kind == "counter":
            made[name] = meter.create_counter(name, m.unit, m.brief)
        elif m.kind == "histogram":
            made[name] = meter.create_histogram(
                name, m.unit, m.brief, explicit_bucket_boundaries_advisory=m.bounds or None
            )
        elif m.kind == "gauge":
            made[name] = meter.create_observable_gauge(name, [observers[name]], m.unit, m.brief)
        else:
            made[name] = meter.create_observable_up_down_counter(name, [observers[name]], m.unit, m.brief)
    return Instruments(made, active, tally)


# Reentrant, since an SDK may log while it makes them, and what is logged may be exported, and its loss be counted here.
_lock = RLock()
_sets: Final[weakref.WeakKeyDictionary[MeterProvider, Instruments]] = weakref.WeakKeyDictionary()
_last: tuple[MeterProvider | None, Instruments]


def instruments(meter_provider: MeterProvider | None = None) -> Instruments:
    """The set of ``meter_provider``, by default of the global one. Always the same object for the same provider.

    Cheap enough to call per request, and what :class:`ContextMiddleware` does: a provider set later is then found.
    """
    global _last
    provider = meter_provider if meter_provider is not None else metrics.get_meter_provider()
    last = _last
    if last[0] is provider:
        return last[1]
    with _lock:
        found = _sets.get(provider)
        if found is None:
            # The proxy has no public name. If it gets another one, its own deferral takes over from ours.
            found = _early if type(provider).__name__ == "_ProxyMeterProvider" else _make(_meter(provider))
            _sets[provider] = found
        _last = (provider, found)
    return found


def is_early(made: Instruments) -> bool:
    """Whether ``made`` is the set of the API's proxy: it records nothing until a provider is set."""
    return made is _early


def after_fork() -> None:
    """In a forked child: what is in flight or was counted in its parent is its parent's to report."""
    global _lock
    _lock = RLock()
    for made in list(_sets.values()):
        made.active.clear()
        made.tally.clear()


def _meter(provider: MeterProvider) -> Meter:
    return provider.get_meter(NAME, schema_url=SCHEMA_URL)


_early: Final = Instruments({name: _Deferred(name) for name in METRICS}, ActiveRequests(), FrameTally())
_last = (None, _early)

_last_tracer: tuple[trace.TracerProvider, trace.Tracer] | None = None


def tracer(tracer_provider: trace.TracerProvider | None = None) -> trace.Tracer:
    """The tracer named ``otelctx`` of ``tracer_provider``, by default of the global one."""
    global _last_tracer
    provider = tracer_provider if tracer_provider is not None else trace.get_tracer_provider()
    last = _last_tracer
    if last is not None and last[0] is provider:
        return last[1]
    found = provider.get_tracer(NAME, schema_url=SCHEMA_URL)
    _last_tracer = (provider, found)
    return found
