from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otelctx.context.current import SESSION, session, with_scope
from otelctx.context.scope import Scope
from otelctx.context.state import State, entry
from otelctx.sdk.stamp import stamp_sessions
from otelctx.telemetry.session import session_attributes


@pytest.fixture
def tracer() -> Any:
    provider = TracerProvider(shutdown_on_exit=False)
    stamp_sessions(provider)
    return provider.get_tracer("anybody")


def test_every_span_that_is_started_in_a_session_has_its_id(tracer: Any) -> None:
    """langfuse #16177: the id was only on the root span."""
    with session("s-1"), tracer.start_as_current_span("outer") as outer:
        inner = tracer.start_span("inner")
        with SESSION.bound("s-2"):
            overlaid = tracer.start_span("overlaid")
    assert [s.attributes["session.id"] for s in (outer, inner, overlaid)] == ["s-1", "s-1", "s-2"]


def test_outside_a_session_there_is_none(tracer: Any) -> None:
    assert dict(tracer.start_span("alone").attributes) == {}


def test_it_is_the_context_given_to_a_span_that_counts(tracer: Any) -> None:
    scope = Scope()
    scope.set(SESSION.spec, "given")
    with session("current"):
        assert tracer.start_span("a", with_scope(scope, Context())).attributes["session.id"] == "given"
        assert dict(tracer.start_span("b", Context()).attributes) == {}


def test_what_the_application_has_given_stays(tracer: Any) -> None:
    with session("s-1"):
        span = tracer.start_span("mine", attributes={"session.id": "mine"})
    assert span.attributes["session.id"] == "mine"


def test_a_span_that_is_not_sampled_costs_nothing_and_a_provider_without_processors_is_left_alone() -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    stamp_sessions(provider)
    with session("s-1"):
        assert not provider.get_tracer("x").start_span("unseen").is_recording()
    stamp_sessions(trace.NoOpTracerProvider())


def test_configure_adds_it_to_providers_of_its_own_and_to_those_that_are_set(run: Any) -> None:
    code = """
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        {}
        import otelctx
        otelctx.configure("a", logs=False)
        with otelctx.session("s-1"), trace.get_tracer("app").start_as_current_span("work") as span:
            print(span.attributes["session.id"])
    """
    off = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
    assert run(code.format(""), **off).strip() == "s-1"
    assert run(code.format("trace.set_tracer_provider(TracerProvider())"), **off).strip() == "s-1"


def test_an_id_is_the_same_text_on_every_span_whoever_makes_it(tracer: Any) -> None:
    """Back ends that refuse NUL would refuse the span, and who looks for a session would find a part of it."""
    odd = "a\0b\x1fé"
    with session(odd):
        stamped = tracer.start_span("a").attributes
    assert dict(stamped) == session_attributes(odd) == {"session.id": "a\ufffdb\x1fé"}


def test_an_id_that_a_peer_has_sent_as_something_else_is_none(tracer: Any) -> None:
    scope = Scope(State({"session.id": entry("session.id", 5)}))
    assert dict(tracer.start_span("a", with_scope(scope, Context())).attributes) == {}
