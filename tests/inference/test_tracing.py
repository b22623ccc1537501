"""What a turn's span says of the error that has ended it."""

from __future__ import annotations

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otelctx.errors import Overloaded
from otelctx.inference import tracing


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer", lambda: provider.get_tracer("test"))
    return exporter


@pytest.mark.parametrize(
    ("error", "outcome", "kind", "description"),
    [
        (Overloaded("the queue is full"), "shed", "overloaded", "the queue is full"),
        (Overloaded("x" * 1000), "shed", "overloaded", "x" * 255 + "…"),
        (RuntimeError("can't render 'my secret'"), "error", "RuntimeError", None),
    ],
)
def test_only_our_own_words_describe_a_status_and_not_many(
    spans: InMemorySpanExporter, error: Exception, outcome: str, kind: str, description: str | None
) -> None:
    turn = tracing.TurnTrace("m", 1, context=Context())
    assert turn.end(tracing.outcome_of(error), 2, error=error)
    (span,) = spans.get_finished_spans()
    assert span.attributes is not None
    assert (span.attributes["otelctx.outcome"], span.attributes["error.type"]) == (outcome, kind)
    assert (span.status.is_ok, span.status.description) == (False, description)
