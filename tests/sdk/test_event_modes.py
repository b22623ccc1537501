"""How events leave a process: by what ``configure()`` or the environment says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from otelctx.testing.receiver import OtlpReceiver

WORK = """
    from opentelemetry import trace
    from otelctx import semconv
    from otelctx.sdk.configure import configure
    from otelctx.telemetry.events import emit
    handle = configure("svc"ARGUMENTS)
    with trace.get_tracer("app").start_as_current_span("chat m"):
        emit(semconv.EVENT_EVICTION, {semconv.REASON: "window", semconv.ACTION: "turns"})
    handle.shutdown()
"""


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


@pytest.mark.parametrize(
    ("arguments", "variable", "on_span", "in_log"),
    [
        ("", "", True, False),
        ("", "log", False, True),
        ("", "both", True, True),
        (', events="log"', "", False, True),
        (', events="span"', "both", True, False),
    ],
)
def test_the_argument_goes_before_the_variable_and_span_events_are_the_default(
    run: Any, receiver: OtlpReceiver, arguments: str, variable: str, on_span: bool, in_log: bool
) -> None:
    run(
        WORK.replace("ARGUMENTS", arguments),
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
        OTELCTX_EVENTS=variable,
    )
    (span,) = receiver.wait_for(lambda spans: len(spans) == 1)
    assert span.has_event("otelctx.eviction") is on_span
    found = [log for log in receiver.logs() if log.name]
    assert [log.name for log in found] == (["otelctx.eviction"] if in_log else [])
    for log in found:
        assert (log.trace_id, log.span_id, log.severity) == (span.trace_id, span.span_id, "INFO")
        assert log.attributes == {"otelctx.reason": "window", "otelctx.action": "turns"}
    assert [point.value for point in receiver.metrics("otelctx.evictions")] == [1]


def test_a_later_call_that_says_how_is_heeded(run: Any) -> None:
    """opentelemetry-instrument has called it before the application does."""
    out = run(
        """
        from otelctx.sdk.configure import configure
        from otelctx.telemetry import events
        configure(logs=False)
        modes = [events._mode]
        configure(events="both")
        modes.append(events._mode)
        configure()
        print(*modes, events._mode)
        """,
        OTEL_TRACES_EXPORTER="none",
        OTEL_METRICS_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
    )
    assert out.split() == ["span", "both", "both"]
