"""What is known of a sampler without asking it is what it says when asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk import environment_variables
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, StaticSampler, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, NoOpTracer, SpanContext, TraceFlags, get_current_span
from opentelemetry.trace import set_span_in_context as set_span

from otelctx.telemetry.sampler import NOTHING, Dropped, dropped

# An SDK without the switch counts the spans that it starts, whatever it is told.
COUNTS = not hasattr(environment_variables, "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED")


class Derived(StaticSampler):
    """Somebody's own."""


SAMPLERS: dict[str, Any] = {
    "off": ALWAYS_OFF,
    "on": ALWAYS_ON,
    "none of a ratio": TraceIdRatioBased(0.0),
    "derived": Derived(ALWAYS_OFF._decision),
    "parent or off": ParentBased(ALWAYS_OFF),
    "parent or on": ParentBased(ALWAYS_ON),
    "parent's opposite": ParentBased(ALWAYS_ON, remote_parent_sampled=ALWAYS_OFF, remote_parent_not_sampled=ALWAYS_ON),
    "off in three parts": ParentBased(ALWAYS_OFF, remote_parent_sampled=ALWAYS_OFF),
    "off in all parts": ParentBased(ALWAYS_OFF, ALWAYS_OFF, ALWAYS_OFF, ALWAYS_OFF, ALWAYS_OFF),
}
_parents = st.builds(
    lambda trace, span, remote, flags: set_span(
        NonRecordingSpan(SpanContext(trace, span, remote, TraceFlags(flags))), Context()
    ),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 3),
)


def known(sampler: Any) -> Dropped:
    return dropped(TracerProvider(sampler, shutdown_on_exit=False).get_tracer("x"))


@pytest.mark.parametrize("name", SAMPLERS)
@given(parent=st.just(Context()) | _parents)
def test_a_span_that_is_said_to_be_dropped_is(name: str, parent: Context) -> None:
    tracer = TracerProvider(SAMPLERS[name], shutdown_on_exit=False).get_tracer("x")
    dropped_for_certain = dropped(tracer).by(parent)
    recorded = tracer.start_span("x", parent).is_recording()
    assert not (dropped_for_certain and recorded)
    if name in ("off", "off in all parts") and get_current_span(parent).get_span_context().is_remote:
        assert dropped_for_certain is not (recorded or COUNTS)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("off", Dropped(all=True)),
        ("on", NOTHING),
        ("none of a ratio", NOTHING),
        ("derived", NOTHING),
        ("parent or off", Dropped(root=True, unsampled=True)),
        ("parent or on", Dropped(unsampled=True)),
        ("parent's opposite", NOTHING),
        ("off in three parts", Dropped(root=True, unsampled=True)),
        ("off in all parts", Dropped(all=True, root=True, unsampled=True)),
    ],
)
def test_only_what_cannot_be_otherwise_is_known(name: str, found: Dropped) -> None:
    assert known(SAMPLERS[name]) == (NOTHING if COUNTS else found)


def test_nothing_is_known_of_a_tracer_of_somebody_else() -> None:
    assert dropped(NoOpTracer()) == NOTHING


def test_an_sdk_that_counts_its_spans_is_asked_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    assert known(ALWAYS_OFF) == NOTHING
