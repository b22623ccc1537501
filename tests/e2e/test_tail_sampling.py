"""The collector keeps what has something to say about a window, and drops the plain when told to."""

from __future__ import annotations

from collections.abc import Callable
from time import time_ns
from typing import Any

import pytest
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from otelctx import semconv
from otelctx.testing.backends import Collector, Jaeger

pytestmark = pytest.mark.e2e
Exporting = Callable[[str, str], Tracer]


def id_of(span: Span) -> str:
    return f"{span.get_span_context().trace_id:032x}"


@pytest.fixture(scope="module")
def strict(start_collector: Callable[..., Collector]) -> Collector:
    """Keeps nothing without a reason."""
    return start_collector(sampling_percentage=0)


def slow(child: Span) -> None:
    child.end(time_ns() + 2_100_000_000)


KEPT: dict[str, Callable[[Span], Any]] = {
    "overflow": lambda child: child.set_attribute(semconv.OVERFLOW, True),
    "truncated": lambda child: child.set_attribute(semconv.TRUNCATED, True),
    "degraded": lambda child: child.set_attribute(semconv.DEGRADED, True),
    "overflow event": lambda child: child.add_event(semconv.EVENT_OVERFLOW),
    "truncation event": lambda child: child.add_event(semconv.EVENT_TRUNCATION),
    "eviction event": lambda child: child.add_event(semconv.EVENT_EVICTION),
    "degradation event": lambda child: child.add_event(semconv.EVENT_DEGRADATION),
    "error": lambda child: child.set_status(Status(StatusCode.ERROR)),
    "slow": slow,
    "overflow among many": lambda child: child.set_attributes(
        {**{f"a{n:03}": n for n in range(200)}, semconv.OVERFLOW: True}
    ),
}
DROPPED: dict[str, Callable[[Span], Any]] = {
    "plain": lambda child: None,
    "booleans that are false": lambda child: child.set_attributes(
        {semconv.OVERFLOW: False, semconv.TRUNCATED: False, semconv.DEGRADED: False}
    ),
    "a word and no boolean": lambda child: child.set_attribute(semconv.OVERFLOW, "true"),
    "another event": lambda child: child.add_event(semconv.EVENT_CONTEXT_RESYNC),
    "an outcome": lambda child: child.set_attribute(semconv.OUTCOME, "length"),
}


def test_a_child_with_a_reason_keeps_its_trace_and_the_plain_go(
    strict: Collector, jaeger: Jaeger, exporting: Exporting
) -> None:
    """The reason sits on a child that ends before its root, as it does when the answer is streamed."""
    tracer = exporting(strict.endpoint, "tail")
    ids: dict[str, str] = {}
    for name, act in {**DROPPED, **KEPT}.items():
        with tracer.start_as_current_span(name) as root:
            ids[name] = id_of(root)
            child = tracer.start_span("child")
            act(child)
            if child.is_recording():
                child.end()
    for name in KEPT:
        spans = jaeger.wait_for(ids[name], lambda spans: len(spans) == 2)
        assert {s["operationName"] for s in spans} == {name, "child"}
    # Decisions are made in the order of arrival: those below came before any of those above.
    assert [name for name in DROPPED if jaeger.trace(ids[name])] == []


def test_a_root_that_comes_after_the_decision_follows_it(
    start_collector: Callable[..., Collector], jaeger: Jaeger, exporting: Exporting
) -> None:
    """A stream longer than the wait: decided by the child that ended early, and neither torn nor half kept."""
    collector = start_collector(sampling_percentage=0, decision_wait="1s")
    tracer = exporting(collector.endpoint, "streamed")

    def begin(name: str, **attributes: bool) -> Span:
        root = tracer.start_span(name)
        with tracer.start_as_current_span("prefill", context=_within(root), attributes=attributes):
            pass
        return root

    plain, kept = begin("plain"), begin("kept", **{semconv.OVERFLOW: True})
    early = jaeger.wait_for(id_of(kept), lambda spans: len(spans) == 1)
    assert early[0]["operationName"] == "prefill"
    plain.end()
    kept.end()
    late = jaeger.wait_for(id_of(kept), lambda spans: len(spans) == 2)
    assert {s["operationName"] for s in late} == {"prefill", "kept"}
    assert jaeger.trace(id_of(plain)) == []


def test_a_root_that_has_ended_shortens_the_wait(
    start_collector: Callable[..., Collector], jaeger: Jaeger, exporting: Exporting
) -> None:
    """With a wait of ten minutes the trace would not be there."""
    collector = start_collector(decision_wait="10m", decision_after_root="100ms")
    with exporting(collector.endpoint, "short").start_as_current_span("root") as root:
        pass
    jaeger.wait_for(id_of(root), lambda spans: len(spans) == 1)


def _within(span: Span) -> Any:
    from opentelemetry.trace import set_span_in_context

    return set_span_in_context(span)
