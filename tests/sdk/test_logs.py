"""Log records over OTLP: in the trace that they were written in, and never about their own export."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otelctx.sdk.logs import keep_printing
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


@pytest.mark.parametrize(
    ("configured", "propagates", "printed"),
    [((), True, True), (("app",), True, False), (("app.part",), True, False), (("app",), False, True)],
)
def test_only_what_no_handler_of_the_applications_own_gets_is_printed_as_python_would(
    monkeypatch: pytest.MonkeyPatch, configured: tuple[str, ...], propagates: bool, printed: bool
) -> None:
    class Exporter(logging.NullHandler):
        """As OpenTelemetry's is told by."""

    Exporter.__module__ = "opentelemetry.test"
    lines: list[str] = []
    last = logging.Handler()
    monkeypatch.setattr(last, "emit", lambda record: lines.append(record.getMessage()))
    monkeypatch.setattr(logging, "lastResort", last)
    monkeypatch.setattr(logging.getLogger(), "handlers", [exporter := Exporter()])
    for name in configured:
        monkeypatch.setattr(logging.getLogger(name), "handlers", [logging.NullHandler()])
    logger = logging.getLogger("app.part")
    monkeypatch.setattr(logger, "propagate", propagates)
    keep_printing()
    exporter.filter(logger.makeRecord("app.part", logging.WARNING, "", 0, "said", (), None))
    assert lines == (["said"] if printed else [])


def test_lines_that_are_printed_have_their_trace_where_the_operator_wants_it(run: Any, receiver: OtlpReceiver) -> None:
    out = run(
        WORK.replace("ARGUMENTS", ""),
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
        OTEL_PYTHON_LOG_CORRELATION="true",
    )
    (span,) = receiver.spans()
    (line,) = (line for line in out.splitlines() if "inside 1" in line)
    assert f"trace_id={span.trace_id} span_id={span.span_id}" in line
    assert set(_records(receiver)) == {"inside 1", "failed", "outside"}, "and they are exported as well"


def test_who_has_set_it_up_without_a_handler_gets_none_and_is_not_told_off(run: Any, receiver: OtlpReceiver) -> None:
    out = run(
        """
        import logging
        from opentelemetry.instrumentation.logging import LoggingInstrumentor
        LoggingInstrumentor().instrument()
        logging.getLogger().handlers.clear()
        from otelctx.sdk.configure import configure
        handle = configure("mine")
        logging.getLogger("app").warning("said")
        print(handle.shutdown(20))
        """,
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
    )
    assert sorted(out.split()) == ["True", "said"]
    assert _records(receiver) == {}
