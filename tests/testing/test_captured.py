from __future__ import annotations

import pytest
from opentelemetry import metrics, trace

from otelctx.testing import SeenSpan, capture


def span(name: str) -> None:
    with trace.get_tracer("test").start_as_current_span(name) as current:
        current.set_attribute("answer", 42)
        current.add_event("otelctx.truncation", {"otelctx.tokens.before": 9})


def test_a_span_its_attributes_and_events_are_seen() -> None:
    with capture() as seen:
        span("POST /chat")
    found = seen.span("POST /chat")
    assert found.attributes["answer"] == 42
    assert found.event("otelctx.truncation").attributes == {"otelctx.tokens.before": 9}
    assert found.has_event("otelctx.truncation")
    assert not found.has_event("otelctx.overflow")
    assert found.duration >= 0


def test_what_is_not_there_is_said_with_what_is() -> None:
    with capture() as seen:
        span("a")
        span("b")
        span("b")
    with pytest.raises(LookupError, match=r"no span 'c'; seen: a, b"):
        seen.span("c")
    with pytest.raises(LookupError, match="2 times span 'b'"):
        seen.span("b")
    with pytest.raises(LookupError, match=r"otelctx\.truncation"):
        seen.span("a").event("otelctx.overflow")


def test_only_the_blocks_own_part_is_seen_and_the_innermost_gets_it() -> None:
    span("before")
    with capture() as outer:
        span("outer")
        with capture() as inner:
            span("inner")
    span("after")
    assert [s.name for s in outer.spans] == ["outer"]
    assert [s.name for s in inner.spans] == ["inner"]


def test_metrics_count_from_the_blocks_start() -> None:
    with capture():
        pass  # sets the providers, if nobody has
    counter = metrics.get_meter("test").create_counter("test.counter")
    histogram = metrics.get_meter("test").create_histogram("test.histogram")
    counter.add(5, {"kind": "x"})
    with capture() as seen:
        counter.add(2, {"kind": "x"})
        histogram.record(1.5)
    assert seen.metric("test.counter", kind="x").value == 2
    assert (seen.metric("test.histogram").value, seen.metric("test.histogram").count) == (1.5, 1)
    with pytest.raises(LookupError, match=r"test\.counter"):
        seen.metric("test.nothing")


def test_the_fixture_is_a_capture(otelctx_capture: object) -> None:
    span("inside")
    found = otelctx_capture.span("inside")  # type: ignore[attr-defined]
    assert isinstance(found, SeenSpan)
