"""The shortcut for ``traceparent`` comes to what OpenTelemetry's propagators come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as otel_context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator, default_getter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otelctx.context.current import with_scope
from otelctx.context.scope import Scope
from otelctx.context.state import EMPTY
from otelctx.exchange import w3c
from otelctx.exchange.node import Node
from otelctx.exchange.propagator import OtelctxPropagator, grant
from otelctx.settings import Settings

TRACE = TraceContextTextMapPropagator()
DEFAULT = CompositePropagator([TRACE, W3CBaggagePropagator()])
LINE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def global_propagator() -> Iterator[None]:
    before = propagate.get_global_textmap()
    yield
    propagate.set_global_textmap(before)


def span(context: Context) -> SpanContext:
    return trace.get_current_span(context).get_span_context()


def context_of(trace_id: int, span_id: int, flags: int = 1, state: TraceState | None = None) -> Context:
    remote = SpanContext(trace_id, span_id, False, TraceFlags(flags), state)
    return trace.set_span_in_context(NonRecordingSpan(remote), Context())


@given(st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True))
@example(LINE)
@example("00-" + "0" * 32 + "-b7ad6b7169203331-01")
@example("00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01")
def test_what_is_read_here_is_read_by_the_propagator_alike(line: str) -> None:
    context = w3c.parse(line.encode())
    assert (context is not None) == line.startswith("00-")
    if context is not None:
        there = TRACE.extract({"traceparent": line})
        assert span(context) == span(there)
        assert set(context) == set(there)


@pytest.mark.parametrize(
    "line", ["", LINE.upper(), f" {LINE}", f"{LINE}\n", f"{LINE}-x", LINE[:-1], LINE.replace("-", "_"), f"cc{LINE[2:]}"]
)
def test_other_forms_are_left_to_the_propagator(line: str) -> None:
    assert w3c.parse(line.encode()) is None


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**64 - 1), st.integers(0, 255))
@example(0, 0, 0)
@example(0, 1, 0)
@example(1, 0, 1)
def test_what_is_written_here_is_written_by_the_propagator_alike(trace_id: int, span_id: int, flags: int) -> None:
    context = context_of(trace_id, span_id, flags)
    here: dict[str, str] = {}
    there: dict[str, str] = {}
    w3c.inject(here, context)
    propagate.get_global_textmap().inject(there, context)
    assert here == there


@pytest.mark.parametrize(
    "context",
    [
        Context(),
        context_of(1, 2, state=TraceState([("vendor", "x")])),
        baggage.set_baggage("a", "b c", context_of(1, 2)),
        baggage.set_baggage("a", "b", Context()),
    ],
)
def test_tracestate_and_baggage_are_written_by_the_propagator(global_propagator: None, context: Context) -> None:
    propagate.set_global_textmap(DEFAULT)
    here: dict[str, str] = {}
    there: dict[str, str] = {}
    w3c.inject(here, context)
    DEFAULT.inject(there, context)
    assert here == there


class Shout(TraceContextTextMapPropagator):
    """Somebody else's, which does more than W3C says."""

    def inject(self, carrier: Any, context: Context | None = None, setter: Any = None) -> None:
        carrier["x-shout"] = "hey"


@pytest.mark.parametrize(
    ("propagator", "known"),
    [
        (TRACE, True),
        (DEFAULT, True),
        (CompositePropagator([TRACE, OtelctxPropagator()]), True),
        (CompositePropagator([DEFAULT, OtelctxPropagator()]), True),  # as configure() leaves it
        (CompositePropagator([CompositePropagator([DEFAULT]), Shout()]), False),
        (W3CBaggagePropagator(), False),
        (CompositePropagator([TRACE, Shout()]), False),
        (CompositePropagator([]), False),
    ],
)
def test_only_propagators_that_are_known_are_passed_by(
    global_propagator: None, propagator: TextMapPropagator, known: bool
) -> None:
    propagate.set_global_textmap(propagator)
    found = w3c.known()
    assert (found.propagator, found.is_w3c) == (propagator, known)
    assert found.fields == {field.encode() for field in propagator.fields}


def test_another_propagator_writes_what_it_writes(global_propagator: None) -> None:
    propagate.set_global_textmap(Shout())
    carrier: dict[str, str] = {}
    w3c.inject(carrier, context_of(1, 2))
    assert carrier == {"x-shout": "hey"}


@pytest.mark.parametrize("before", [TRACE, DEFAULT])
def test_a_granted_frame_is_written_by_our_propagator(global_propagator: None, before: TextMapPropagator) -> None:
    propagate.set_global_textmap(CompositePropagator([before, OtelctxPropagator(Node(Settings()))]))
    context = with_scope(Scope(EMPTY.put("session.id", "s")), context_of(1, 2))
    carrier: dict[str, str] = {}
    w3c.inject(carrier, grant("localhost", context=context))
    assert set(carrier) == {"traceparent", "otelctx"}
    carrier.clear()
    w3c.inject(carrier, grant("api.example.com", context=context))
    w3c.inject(carrier, context)
    assert set(carrier) == {"traceparent"}


class Broken(TextMapPropagator):
    """Somebody else's, which raises when it has done half of it, as some do where a header is absent."""

    @property
    def fields(self) -> set[str]:
        raise KeyError("x-broken")

    def extract(self, carrier: Any, context: Context | None = None, getter: Any = None) -> Context:
        raise KeyError("x-broken")

    def inject(self, carrier: Any, context: Context | None = None, setter: Any = None) -> None:
        carrier["x-broken"] = "half"
        raise KeyError("x-broken")


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("nested", [False, True])
def test_one_propagator_that_raises_does_not_cost_what_the_others_do(
    global_propagator: None, at: int, nested: bool
) -> None:
    parts: list[TextMapPropagator] = [TRACE, W3CBaggagePropagator()]
    parts.insert(at, Broken())
    composite = CompositePropagator(parts)
    propagate.set_global_textmap(CompositePropagator([composite, OtelctxPropagator()]) if nested else composite)
    carrier: dict[str, str] = {}
    w3c.inject(carrier, baggage.set_baggage("a", "b", context_of(1, 2)))
    assert carrier == {"traceparent": f"00-{1:032x}-{2:016x}-01", "baggage": "a=b"}
    found = w3c.extract(carrier, default_getter)
    assert (span(found).span_id, dict(baggage.get_all(found))) == (2, {"a": "b"})


@pytest.mark.parametrize("parts", [[TRACE, W3CBaggagePropagator()], [W3CBaggagePropagator(), TRACE]])
def test_in_whatever_order_nothing_of_what_is_current_is_taken_for_the_callers(
    global_propagator: None, parts: list[TextMapPropagator]
) -> None:
    propagate.set_global_textmap(CompositePropagator(parts))
    token = otel_context.attach(baggage.set_baggage("ambient", "1", context_of(3, 4)))
    try:
        for carrier in ({"traceparent": LINE, "tracestate": "a=1"}, {"baggage": "a=b"}, {"traceparent": "x"}, {}):
            found = w3c.extract(carrier, default_getter)
            assert "ambient" not in baggage.get_all(found)
            assert span(found).span_id != 4
    finally:
        otel_context.detach(token)
