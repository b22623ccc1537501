from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context

from otelctx import semconv
from otelctx.telemetry import events
from otelctx.telemetry.feed import FEED
from otelctx.telemetry.instruments import tracer

VALUES: dict[str, Any] = {
    semconv.TOKENS_BEFORE: 900,
    semconv.TOKENS_LIMIT: 512,
    semconv.ACTION: "turns",
    semconv.REASON: "window",
}


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        (semconv.EVENT_OVERFLOW, semconv.OVERFLOW),
        (semconv.EVENT_TRUNCATION, semconv.TRUNCATED),
        (semconv.EVENT_DEGRADATION, semconv.DEGRADED),
        (semconv.EVENT_EVICTION, None),
    ],
)
def test_an_event_is_on_its_span_and_once_on_the_server_span(seen: Any, name: str, flag: str | None) -> None:
    server = tracer().start_span("POST /chat", kind=trace.SpanKind.SERVER)
    context = events.set_server_span(trace.set_span_in_context(server, Context()), server)
    chat = tracer().start_span("chat m", context=context)
    events.emit(name, VALUES, span=chat, context=context)
    chat.end()
    server.end()
    for span in seen.exporter.get_finished_spans():
        assert [(e.name, dict(e.attributes)) for e in span.events] == [(name, VALUES)]
        assert dict(span.attributes or {}) == ({flag: True} if flag else {})


def test_an_event_on_the_server_span_itself_is_not_doubled(seen: Any) -> None:
    server = tracer().start_span("GET")
    context = events.set_server_span(trace.set_span_in_context(server, Context()), server)
    events.emit(semconv.EVENT_OVERFLOW, VALUES, context=context)
    server.end()
    (span,) = seen.exporter.get_finished_spans()
    assert len(span.events) == 1


def test_the_counter_carries_only_what_is_bounded(seen: Any) -> None:
    events.emit(semconv.EVENT_OVERFLOW, {**VALUES, "session.id": "s-1"}, context=Context())
    (point,) = seen.points("otelctx.overflows")
    assert (point.value, dict(point.attributes)) == (1, {semconv.ACTION: "turns", semconv.REASON: "window"})


@pytest.mark.parametrize(("mode", "on_span", "in_log"), [("span", 1, 0), ("log", 0, 1), ("both", 1, 1)])
def test_the_mode_chooses_span_events_log_records_or_both(
    seen: Any, mode: events.Mode, on_span: int, in_log: int
) -> None:
    events.set_mode(mode)
    span = tracer().start_span("chat m")
    events.emit(semconv.EVENT_OVERFLOW, VALUES, span=span, context=Context())
    span.end()
    (ended,) = seen.exporter.get_finished_spans()
    records = [r.log_record for r in seen.logs.get_finished_logs()]
    assert (len(ended.events), len(records)) == (on_span, in_log)
    assert ended.attributes is not None
    assert ended.attributes[semconv.OVERFLOW] is True, "the flag is for tail sampling, whatever the mode"
    for record in records:
        assert (record.event_name, dict(record.attributes)) == (semconv.EVENT_OVERFLOW, VALUES)
        assert (record.trace_id, record.span_id) == (ended.context.trace_id, ended.context.span_id)


def test_another_mode_or_event_is_refused(seen: Any) -> None:
    with pytest.raises(ValueError, match="'span', 'log' or 'both'"):
        events.set_mode("logs")  # type: ignore[arg-type]  # what a user may write
    with pytest.raises(KeyError):
        events.emit("otelctx.unheard-of")


def test_the_feed_keeps_the_newest_with_their_ids(seen: Any) -> None:
    FEED.clear()
    span = tracer().start_span("chat m")
    events.emit(semconv.EVENT_EVICTION, VALUES, span=span, context=Context())
    events.emit(semconv.EVENT_SESSION_EXPIRED, context=Context())
    first, second = FEED.recent()
    assert (first.name, first.attributes) == (semconv.EVENT_EVICTION, VALUES)
    assert first.trace_id == format(span.get_span_context().trace_id, "032x")
    assert (second.trace_id, second.span_id) == ("", "")
