"""Log records over OTLP: in the trace that they were written in, and never about their own export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otelctx.testing.receiver import OtlpReceiver

WORK = """
    import logging
    from opentelemetry import trace
    from otelctx.sdk.configure import configure
    handle = configure("logging"ARGUMENTS)
    logging.getLogger().setLevel(logging.DEBUG)
    log = logging.getLogger("app")
    with trace.get_tracer("app").start_as_current_span("work"):
        log.info("inside %d", 1)
        try:
            raise ValueError("wrong")
        except ValueError:
            log.exception("failed")
    log.warning("outside")
    for _ in range(3):
        handle._providers["logs"].get().force_flush()
"""


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


def _records(receiver: OtlpReceiver) -> dict[str, LogRecord]:
    found = [r for resource in receiver._logs.list() for scope in resource.scope_logs for r in scope.log_records]
    return {record.body.string_value: record for record in found}


def test_a_record_has_the_trace_the_severity_and_the_exception(run: Any, receiver: OtlpReceiver) -> None:
    run(WORK.replace("ARGUMENTS", ""), OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint)
    records = _records(receiver)
    (span,) = receiver.spans()
    assert {body: (r.trace_id.hex(), r.severity_text) for body, r in records.items()} == {
        "inside 1": (span.trace_id, "INFO"),
        "failed": (span.trace_id, "ERROR"),
        "outside": ("", "WARN"),
    }
    assert records["failed"].span_id.hex() == span.span_id
    attributes = {a.key: a.value.string_value for a in records["failed"].attributes}
    assert (attributes["exception.type"], attributes["exception.message"]) == ("ValueError", "wrong")
    assert attributes["exception.stacktrace"].endswith("ValueError: wrong\n")


def test_from_the_level_that_was_asked_for(run: Any, receiver: OtlpReceiver) -> None:
    run(WORK.replace("ARGUMENTS", ', log_level="warning"'), OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint)
    assert set(_records(receiver)) == {"failed", "outside"}


def test_what_is_logged_while_exporting_is_not_exported(run: Any, receiver: OtlpReceiver) -> None:
    """Else each export by HTTP writes a line of its client's, which is exported, which writes a line."""
    out = run(
        WORK.replace("ARGUMENTS", "") + "    print(handle.dropped(), handle._pipelines()[-1].delivered)",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1",
        OTEL_EXPORTER_OTLP_LOGS_PROTOCOL="http/protobuf",
        OTEL_EXPORTER_OTLP_LOGS_TIMEOUT="1",
        OTEL_METRICS_EXPORTER="none",
        OTEL_TRACES_EXPORTER="none",
    )
    assert "{'logs': {'export': 3}} 0" in out


def test_an_unknown_level_is_refused() -> None:
    from otelctx.errors import ConfigError
    from otelctx.sdk.configure import configure

    with pytest.raises(ConfigError, match="CRITICAL"):
        configure(log_level="loud")
