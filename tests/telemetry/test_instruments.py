from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import metrics

from otelctx import semconv
from otelctx.telemetry import instruments as module
from otelctx.telemetry.instruments import (
    instruments,
    observe_arena,
    observe_fragmentation,
    observe_kv,
    observe_pressure,
    observe_sessions,
    observe_upstreams,
    tracer,
)


def test_every_metric_of_the_table_exists_with_its_unit_and_bounds(seen: Any) -> None:
    made = instruments()
    ends = [observe_arena(lambda: {"used": 1}), observe_sessions(lambda: 2)]
    ends += [observe_fragmentation(lambda: (96, 128))]
    ends += [observe_kv(lambda: {"actual": 1}), observe_pressure(lambda: (1, {"memory": 0.8}))]
    ends += [observe_upstreams(lambda: [({"server.address": "a", "server.port": 1}, 2, 1)])]
    made.active.bucket("GET", "http").add(1)
    for name, row in semconv.METRICS.items():
        if name in (semconv.FRAMES, semconv.FRAME_BYTES):
            made.tally.add("full", "sent", 7)
        elif row.kind == "counter":
            made.by_name[name].add(1)
        elif row.kind == "histogram":
            made.by_name[name].record(1)
            (point,) = seen.points(name)
            assert row.bounds == point.explicit_bounds
    data = seen.reader.get_metrics_data()
    found = {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    for end in ends:
        end()
    assert set(semconv.METRICS) == set(found)
    assert {name: m.unit for name, m in found.items()} == {name: row.unit for name, row in semconv.METRICS.items()}


def test_one_provider_has_one_set_however_it_is_asked_for(providers: Callable[[], Any], seen: Any) -> None:
    other = providers()
    first = instruments(other.meters)
    assert instruments() is instruments(seen.meters)
    assert instruments(other.meters) is first
    assert instruments() is not first


def test_threads_that_ask_at_once_get_one_set(providers: Callable[[], Any]) -> None:
    """Two sets would register two observables of one name, of which the second is lost."""
    for _ in range(20):
        provider = providers()
        barrier = threading.Barrier(4)
        found: list[object] = []

        def ask(provider: Any = provider, barrier: threading.Barrier = barrier, found: list[object] = found) -> None:
            barrier.wait()
            found.append(instruments(provider.meters))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(f) for f in found}) == 1


def test_an_instrument_held_since_before_the_provider_was_set_reaches_it(
    monkeypatch: pytest.MonkeyPatch, providers: Callable[[], Any]
) -> None:
    class _ProxyMeterProvider(metrics.NoOpMeterProvider):
        pass

    proxy = _ProxyMeterProvider()
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: proxy)
    early = instruments()
    early.requests.add(1)
    early.window_tokens.record(5)
    later = providers()
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: later.meters)
    early.requests.add(2)
    early.window_tokens.record(7)
    early.event_counter(semconv.EVENT_OVERFLOW).add(3)
    assert [p.value for p in later.points(semconv.REQUESTS)] == [2]
    assert [p.sum for p in later.points(semconv.WINDOW_TOKENS)] == [7]
    assert [p.value for p in later.points("otelctx.overflows")] == [3]


def test_the_api_still_names_its_proxy_as_we_look_for_it() -> None:
    from opentelemetry.metrics import _internal

    assert _internal._ProxyMeterProvider.__name__ == "_ProxyMeterProvider"


def test_active_requests_are_reported_by_method_and_scheme(seen: Any) -> None:
    active = instruments().active
    one, two = object(), object()
    active.bucket("GET", "http").update((one, two))
    active.bucket("POST", "https").add(one)
    active.bucket("GET", "http").discard(two)
    active.bucket("GET", "http").discard(two)
    values = {tuple(sorted(p.attributes.items())): p.value for p in seen.points(semconv.HTTP_SERVER_ACTIVE)}
    assert values == {
        (("http.request.method", "GET"), ("url.scheme", "http")): 1,
        (("http.request.method", "POST"), ("url.scheme", "https")): 1,
    }


def test_frames_are_added_up_by_kind_and_direction_from_any_thread(seen: Any) -> None:
    tally = instruments().tally

    def send() -> None:
        for _ in range(500):
            tally.add("ref", "sent", 58)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    tally.add("ack", "received", 34)
    for thread in threads:
        thread.join()
    for name, sent, received in ((semconv.FRAMES, 2000, 1), (semconv.FRAME_BYTES, 116_000, 34)):
        values = {
            (p.attributes[semconv.FRAME_KIND], p.attributes[semconv.FRAME_DIRECTION]): p.value
            for p in seen.points(name)
        }
        assert values == {("ref", "sent"): sent, ("ack", "received"): received}


def test_arenas_and_stores_of_one_process_are_added_up_until_they_end(seen: Any) -> None:
    instruments()
    ends = [observe_arena(lambda: {"used": 3, "free": 5}), observe_arena(lambda: {"used": 1})]
    ends += [observe_sessions(lambda: 4), observe_sessions(lambda: 6)]
    assert {p.attributes[semconv.ARENA_STATE]: p.value for p in seen.points(semconv.ARENA_PAGES)} == {
        "used": 4,
        "free": 5,
    }
    assert [p.value for p in seen.points(semconv.SESSIONS)] == [10]
    for end in ends:
        end()
    assert seen.points(semconv.SESSIONS) == []
    assert module._arenas == {}


def test_fragmentation_is_the_empty_share_of_all_used_pages(seen: Any) -> None:
    instruments()
    ends = [observe_fragmentation(lambda: (96, 128)), observe_fragmentation(lambda: (32, 128))]
    assert [p.value for p in seen.points(semconv.ARENA_FRAGMENTATION)] == [0.5]
    ends.pop()()
    assert [p.value for p in seen.points(semconv.ARENA_FRAGMENTATION)] == [0.25]
    ends.pop()()
    assert seen.points(semconv.ARENA_FRAGMENTATION) == []
    ends = [observe_fragmentation(lambda: (0, 0)), observe_fragmentation(lambda: (65, 64))]
    assert [p.value for p in seen.points(semconv.ARENA_FRAGMENTATION)] == [0], "read while a session came"
    for end in ends:
        end()


def test_of_several_workers_in_a_process_the_pressure_of_the_worst_is_told(seen: Any) -> None:
    instruments()
    ends = [observe_pressure(lambda: (1, {"memory": 0.85, "latency": 0.1}))]
    ends += [observe_pressure(lambda: (2, {"memory": 0.2, "latency": 1.6}))]
    ends += [observe_kv(lambda: {"actual": 10, "budget": 20}), observe_kv(lambda: {"actual": 5})]
    assert [p.value for p in seen.points(semconv.PRESSURE_LEVEL)] == [2]
    ratios = {p.attributes[semconv.PRESSURE_SIGNAL]: p.value for p in seen.points(semconv.PRESSURE_RATIO)}
    assert ratios == {"memory": 0.85, "latency": 1.6}
    assert {p.attributes[semconv.KV_STATE]: p.value for p in seen.points(semconv.KV_BYTES)} == {
        "actual": 15,
        "budget": 20,
    }
    for end in ends:
        end()
    assert seen.points(semconv.PRESSURE_LEVEL) == seen.points(semconv.PRESSURE_RATIO) == []


def test_the_tracer_is_found_again_without_asking_the_provider(seen: Any, providers: Callable[[], Any]) -> None:
    assert tracer() is tracer()
    assert tracer() is not tracer(providers().tracers)
    with tracer().start_as_current_span("x"):
        pass
    (span,) = seen.exporter.get_finished_spans()
    assert span.instrumentation_scope.name == "otelctx"
