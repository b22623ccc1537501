from __future__ import annotations

import socket
from typing import Any

import pytest
from opentelemetry.sdk import environment_variables

from otelctx.errors import ConfigError

WORK = """
    import logging
    from opentelemetry import metrics, trace
    from otelctx.sdk.configure import configure
    handle = configure("chat-api")
    with trace.get_tracer("app").start_as_current_span("work"):
        logging.getLogger("app").warning("a log line")
    metrics.get_meter("app").create_counter("app.count").add(1)
"""


def test_all_three_signals_leave_by_grpc_without_any_setting(run: Any, collector: Any) -> None:
    run(WORK, OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint)
    assert ("chat-api", "work") in collector.spans
    assert ("chat-api", "app.count") in collector.metrics
    assert ("chat-api", "a log line") in collector.logs


def test_what_the_environment_says_goes_before_our_defaults(run: Any, collector: Any) -> None:
    out = run(
        WORK + "\n    import os; print(sorted(n for n in os.environ if n.startswith('OTEL_')))",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
        OTEL_SERVICE_NAME="by-operator",
        OTEL_METRICS_EXPORTER="none",
        OTEL_TRACES_EXPORTER="console",
        OTEL_RESOURCE_ATTRIBUTES="a=b",
    )
    assert (collector.spans, collector.metrics) == ([], [])
    assert ("by-operator", "a log line") in collector.logs
    assert '"name": "work"' in out
    assert (
        "['OTEL_EXPORTER_OTLP_ENDPOINT', 'OTEL_METRICS_EXPORTER', 'OTEL_RESOURCE_ATTRIBUTES', 'OTEL_SERVICE_NAME', "
        "'OTEL_TRACES_EXPORTER']"
    ) in out, "our defaults are not left to child processes"


def test_it_is_idempotent_and_adds_the_propagator_once(run: Any) -> None:
    out = run(
        """
        from opentelemetry import propagate, trace
        before = propagate.get_global_textmap()
        from otelctx.sdk.configure import configure
        handle = configure("a")
        after = propagate.get_global_textmap()
        provider = trace.get_tracer_provider()
        assert configure("a") is configure() is handle
        assert propagate.get_global_textmap() is after
        assert trace.get_tracer_provider() is provider
        assert after.fields == before.fields | {"otelctx"}, after.fields
        carrier = {}
        with trace.get_tracer("x").start_as_current_span("x"):
            propagate.inject(carrier)
        print(sorted(carrier))
        """,
        OTEL_TRACES_EXPORTER="none",
        OTEL_METRICS_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
    )
    assert out.strip() == "['traceparent']", "a bare injection writes no frame"


@pytest.mark.parametrize(
    ("propagators", "fields"), [("none", "[]"), ("tracecontext,otelctx", "['otelctx', 'traceparent', 'tracestate']")]
)
def test_the_propagators_that_the_operator_chose_stay(run: Any, propagators: str, fields: str) -> None:
    out = run(
        """
        from otelctx.sdk.configure import configure
        from opentelemetry import propagate
        before = propagate.get_global_textmap()
        configure("a", logs=False)
        assert propagate.get_global_textmap() is before
        print(sorted(before.fields))
        """,
        OTEL_PROPAGATORS=propagators,
        OTEL_TRACES_EXPORTER="none",
        OTEL_METRICS_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
    )
    assert out.strip() == fields


def test_providers_that_are_set_are_reused_and_not_shut_down(run: Any, collector: Any) -> None:
    out = run(
        """
        from opentelemetry import metrics, trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        mine, exporter = TracerProvider(), InMemorySpanExporter()
        mine.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(mine)
        from otelctx.sdk.configure import configure
        handle = configure("a")
        assert trace.get_tracer_provider() is mine
        assert "Proxy" not in type(metrics.get_meter_provider()).__name__
        assert handle.check()
        assert handle.shutdown()
        with trace.get_tracer("x").start_as_current_span("after"):
            pass
        print([s.name for s in exporter.get_finished_spans()])
        """,
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
    )
    assert out.strip() == "['otelctx.check', 'after']", "and no warning about overriding a provider"
    assert collector.spans == []


def test_check_says_whether_a_span_arrives(run: Any, collector: Any) -> None:
    code = "from otelctx.sdk.configure import configure\nc = configure('a').check()\nprint(c.ok, c.detail)"
    assert run(code, OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint).startswith("True a test span was delivered")
    assert ("a", "otelctx.check") in collector.spans
    dead = run(code, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert dead.startswith("False")
    assert "UNAVAILABLE" in dead
    assert run(code, OTEL_TRACES_EXPORTER="none").startswith("False no exporter for traces")
    assert run(code, OTEL_TRACES_SAMPLER="always_off").startswith("False the test span was not sampled")


def test_a_dead_collector_costs_one_warning_and_three_seconds(run: Any) -> None:
    """Without a bound it is half a minute, and a line a second."""
    out = run(WORK, timeout=120, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert out.count("telemetry does not reach its collector") <= 1
    assert "telemetry was not delivered before the end: spans: 1" in out
    assert "Transient error" not in out.replace("collector: Transient error", "")
    assert "shutdown can only be called once" not in out


def test_a_collector_that_never_answers_does_not_hold_the_process(run: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:
        port = hole.getsockname()[1]
        out = run(WORK, timeout=120, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")
    assert "spans: 1" in out


def test_a_forked_child_exports_its_own_spans(run: Any, collector: Any) -> None:
    """As gunicorn with --preload does."""
    run(
        """
        import os, sys
        from opentelemetry import trace
        from otelctx.sdk.configure import configure
        handle = configure("parent", logs=False)
        pid = os.fork()
        if pid == 0:
            with trace.get_tracer("app").start_as_current_span("child"):
                pass
            ok = configure("again") is handle and bool(handle.check())
            os._exit(0 if handle.shutdown() and ok else 1)
        assert os.waitpid(pid, 0)[1] == 0
        with trace.get_tracer("app").start_as_current_span("parent"):
            pass
        """,
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
        OTEL_METRICS_EXPORTER="none",
    )
    names = [name for _, name in collector.spans]
    assert sorted(names) == ["child", "otelctx.check", "parent"]


def test_warnings_are_still_printed_where_nobody_has_configured_logging(run: Any) -> None:
    """Python prints them as long as there is no handler at all, and an exporting one is a handler."""
    out = run(
        """
        import logging, sys
        from otelctx.sdk.configure import configure
        configure("a")
        log = logging.getLogger("app")
        log.info("no")
        log.warning("bare")
        other = logging.getLogger("other")
        other.addHandler(logging.StreamHandler(sys.stdout))
        other.warning("by its own handler")
        logging.basicConfig(format="configured %(message)s")
        log.warning("line")
        """,
        OTEL_TRACES_EXPORTER="none",
        OTEL_METRICS_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
    )
    assert sorted(out.split("\n")) == ["", "bare", "by its own handler", "configured line"]


def test_logging_is_left_alone_if_a_handler_of_opentelemetry_is_there(run: Any, collector: Any) -> None:
    run(
        """
        import logging
        from opentelemetry.instrumentation.logging import LoggingInstrumentor
        LoggingInstrumentor().instrument()
        from otelctx.sdk.configure import configure
        configure("a")
        logging.getLogger("app").warning("once")
        """,
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
    )
    assert [body for _, body in collector.logs] == ["once"]


no_files = pytest.mark.skipif(
    not hasattr(environment_variables, "OTEL_CONFIG_FILE"), reason="this SDK has no configuration files"
)


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_TRACES_EXPORTER", "nowhere"), pytest.param("OTEL_CONFIG_FILE", "/nowhere.yaml", marks=no_files)],
)
def test_what_is_not_installed_is_said_plainly(run: Any, name: str, value: str) -> None:
    out = run(
        """
        from otelctx.errors import ConfigError
        from otelctx.sdk.configure import configure
        try:
            configure("a")
        except ConfigError as error:
            print(error)
        """,
        **{name: value},
    )
    assert value in out or "opentelemetry-configuration" in out


def test_a_wrong_mode_of_events_is_refused_before_anything_is_set_up() -> None:
    from otelctx.sdk.configure import configure

    with pytest.raises(ConfigError, match="'span', 'log' or 'both'"):
        configure(events="logs")  # type: ignore[arg-type]  # what a user may write


# the parts, without processes


def test_the_exporters_lines_become_one_warning_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    from otelctx.sdk.quiet import Quiet

    now = [0.0]
    failures: list[str] = []
    quiet = Quiet(failures.append, clock=lambda: now[0])
    quiet.install()
    try:
        log = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")
        for second in range(130):
            now[0] = second
            log.warning("Transient error %s encountered while exporting %s to %s", "UNAVAILABLE", "traces", "h:1")
            log.error("Failed to export %s to %s", "traces", "h:1")
            log.warning("Something else")
            log.warning("Shutdown in progress, aborting retry.")
            log.info("fine")
    finally:
        quiet.remove()
    lines = [r.getMessage() for r in caplog.records]
    assert sum("telemetry does not reach its collector" in line for line in lines) == 3
    assert lines.count("Something else") == 3
    assert not any("Shutdown in progress" in line for line in lines)
    assert len(failures) == 260


def test_defaults_last_as_long_as_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from otelctx.sdk.environment import defaults

    monkeypatch.setenv("OTELCTX_TEST_SET", "mine")
    monkeypatch.setenv("OTELCTX_TEST_EMPTY", "")
    names = ("OTELCTX_TEST_SET", "OTELCTX_TEST_EMPTY", "OTELCTX_TEST_NEW")
    with defaults(dict.fromkeys(names, "ours")):
        assert [os.environ[name] for name in names] == ["mine", "ours", "ours"]
    assert os.environ["OTELCTX_TEST_EMPTY"] == ""
    assert "OTELCTX_TEST_NEW" not in os.environ
