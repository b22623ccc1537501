"""Span events, log records or both: what leaves as OTLP, and what holds whichever it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from otelctx import semconv
from otelctx.telemetry import events
from otelctx.telemetry.events import Mode, emit
from otelctx.telemetry.instruments import NAME, SCHEMA_URL, tracer

MODES: tuple[Mode, ...] = get_args(Mode)
VALUES: dict[str, Any] = {
    semconv.TOKENS_BEFORE: 900,
    semconv.TOKENS_AFTER: 400,
    semconv.TOKENS_LIMIT: 512,
    semconv.ACTION: "turns",
    semconv.REASON: "window",
}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, seen: Any) -> Iterator[Mode]:
    events.set_mode(request.param)
    yield request.param
    events.set_mode("span")


def pairs(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


def records(seen: Any) -> list[Any]:
    found = seen.logs.get_finished_logs()
    if not found:
        return []
    return [r for rl in encode_logs(found).resource_logs for s in rl.scope_logs for r in s.log_records]


def spans(seen: Any) -> dict[str, Any]:
    encoded = encode_spans(seen.exporter.get_finished_spans())
    return {span.name: span for rs in encoded.resource_spans for s in rs.scope_spans for span in s.spans}


def turn(name: str) -> tuple[trace.Span, trace.Span]:
    """``name`` on a turn's span under a SERVER span; both have ended."""
    server = tracer().start_span("POST /chat", kind=trace.SpanKind.SERVER)
    context = events.set_server_span(trace.set_span_in_context(server, Context()), server)
    chat = tracer().start_span("chat m", context=context)
    emit(name, VALUES, span=chat, context=context)
    chat.end()
    server.end()
    return chat, server


@pytest.mark.parametrize("name", semconv.EVENTS)
def test_each_event_has_its_counter_in_every_mode(seen: Any, mode: Mode, name: str) -> None:
    turn(name)
    (point,) = seen.points(semconv.EVENTS[name].counter)
    assert point.value == 1
    assert set(point.attributes) == set(semconv.METRICS[semconv.EVENTS[name].counter].attributes)


def test_span_events_stand_on_the_turn_and_on_the_server_span_and_a_record_is_one(seen: Any, mode: Mode) -> None:
    """The copy is for people who look at a span. A record is found by its trace from either, so there is only one."""
    turn(semconv.EVENT_TRUNCATION)
    on_spans = {name: [e.name for e in span.events] for name, span in spans(seen).items()}
    expected = [] if mode == "log" else [semconv.EVENT_TRUNCATION]
    assert on_spans == {"chat m": expected, "POST /chat": expected}
    assert len(records(seen)) == (0 if mode == "span" else 1)


def test_the_flags_are_on_both_spans_in_every_mode(seen: Any, mode: Mode) -> None:
    """A tail sampler looks at attributes of spans; it sees no log records."""
    turn(semconv.EVENT_TRUNCATION)
    assert [pairs(span.attributes) for span in spans(seen).values()] == [{semconv.TRUNCATED: True}] * 2


def test_a_record_is_the_span_event_with_severity_and_ids(seen: Any) -> None:
    events.set_mode("both")
    chat, _ = turn(semconv.EVENT_OVERFLOW)
    (record,) = records(seen)
    (event,) = spans(seen)["chat m"].events
    assert record.event_name == event.name == semconv.EVENT_OVERFLOW
    assert pairs(record.attributes) == pairs(event.attributes) == VALUES
    assert (record.severity_number, record.severity_text) == (9, ""), "INFO"
    assert abs(record.time_unix_nano - event.time_unix_nano) < 10**9
    ids = chat.get_span_context()
    assert record.trace_id == ids.trace_id.to_bytes(16, "big")
    assert record.span_id == ids.span_id.to_bytes(8, "big")
    assert record.flags == ids.trace_flags


def test_a_record_names_the_scope_and_the_conventions_of_our_spans(seen: Any) -> None:
    events.set_mode("log")
    emit(semconv.EVENT_OVERFLOW, VALUES, context=Context())
    (scope,) = (s for rl in encode_logs(seen.logs.get_finished_logs()).resource_logs for s in rl.scope_logs)
    assert (scope.scope.name, scope.schema_url) == (NAME, SCHEMA_URL)


def test_outside_of_any_span_an_event_is_counted_and_recorded_without_ids(seen: Any, mode: Mode) -> None:
    emit(semconv.EVENT_SESSION_EXPIRED, {semconv.REASON: "idle"}, context=Context())
    assert [p.value for p in seen.points("otelctx.sessions.expired")] == [1]
    assert not seen.exporter.get_finished_spans()
    found = records(seen)
    assert len(found) == (0 if mode == "span" else 1)
    for record in found:
        assert (record.event_name, record.trace_id, record.span_id) == (semconv.EVENT_SESSION_EXPIRED, b"", b"")
        assert pairs(record.attributes) == {semconv.REASON: "idle"}


def test_of_an_unsampled_turn_there_are_the_counter_and_the_record(seen: Any, mode: Mode) -> None:
    ids = trace.SpanContext(5, 7, is_remote=False, trace_flags=trace.TraceFlags(0))
    emit(semconv.EVENT_OVERFLOW, VALUES, span=trace.NonRecordingSpan(ids), context=Context())
    assert [p.value for p in seen.points("otelctx.overflows")] == [1]
    assert [int.from_bytes(r.trace_id, "big") for r in records(seen)] == ([] if mode == "span" else [5])
