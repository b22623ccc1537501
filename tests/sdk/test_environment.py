"""The standard variables, read by the SDK itself: what they say is what leaves."""

from __future__ import annotations

from typing import Any

import pytest

from otelctx.testing.receiver import OtlpReceiver

WORK = """
    import logging
    from opentelemetry import metrics, trace
    from otelctx.sdk.configure import configure
    handle = configure("by-code", logs=False)
    with trace.get_tracer("app").start_as_current_span("work", attributes={"long": "x" * 100}) as span:
        for n in range(10):
            span.add_event(str(n))
    print(sorted((dict(getattr(trace.get_tracer_provider(), "resource", None).attributes or {})).items()))
"""
SETTINGS = """
    import json, threading
    from http.server import BaseHTTPRequestHandler, HTTPServer
    seen = []
    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            encoding = self.headers.get("content-encoding")
            seen.append((self.path, self.headers.get("x-key"), encoding, body[:2] == bytes([0x1f, 0x8b])))
            self.send_response(200); self.end_headers()
        def log_message(self, *a): pass
    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    import os
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}/base"
    os.environ["OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}/own/logs"
    from opentelemetry import metrics, trace, _logs
    from otelctx.sdk.configure import configure
    handle = configure("x", logs=False)
    trace.get_tracer("a").start_span("s").end()
    metrics.get_meter("a").create_counter("c").add(1)
    _logs.get_logger("a").emit(_logs.LogRecord(body="l"))
    handle.shutdown(20)
    server.shutdown(); server.server_close()
    for one in sorted(set(seen)):
        print(*one)
"""


def test_http_with_endpoints_headers_and_compression(run: Any) -> None:
    out = run(
        SETTINGS,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_EXPORTER_OTLP_HEADERS="x-key=a%20b%3D",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
    )
    paths = ("/base/v1/metrics", "/base/v1/traces", "/own/logs")
    assert out.splitlines() == [f"{path} a b= gzip True" for path in paths]


def test_name_attributes_and_limits(run: Any) -> None:
    with OtlpReceiver() as receiver:
        out = run(
            WORK,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            OTEL_SERVICE_NAME="by-operator",
            OTEL_RESOURCE_ATTRIBUTES="service.name=not-this,team=b%20c",
            OTEL_EXPERIMENTAL_RESOURCE_DETECTORS="otel,process",
            OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT="10",
            OTEL_SPAN_EVENT_COUNT_LIMIT="3",
        )
        (span,) = receiver.spans()
    assert (span.service, span.attributes["long"], [e.name for e in span.events]) == (
        "by-operator",
        "x" * 10,
        ["7", "8", "9"],
    )
    assert "('team', 'b c')" in out
    assert "'process.pid'" in out


@pytest.mark.parametrize(("sampler", "argument", "count"), [("always_off", "", 0), ("traceidratio", "1.0", 1)])
def test_the_sampler(run: Any, sampler: str, argument: str, count: int) -> None:
    with OtlpReceiver() as receiver:
        run(
            WORK,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            OTEL_TRACES_SAMPLER=sampler,
            OTEL_TRACES_SAMPLER_ARG=argument,
        )
        assert len(receiver.spans()) == count


def test_a_sdk_that_is_switched_off_makes_no_providers_and_context_still_flows(run: Any) -> None:
    out = run(
        """
        from opentelemetry import propagate, trace
        from otelctx.context.current import session, current_scope
        from otelctx.sdk.configure import configure
        handle = configure("off")
        print(type(trace.get_tracer_provider()).__name__, handle.check())
        with session("s1"):
            print(current_scope() is not None, sorted(propagate.get_global_textmap().fields))
        print(handle.shutdown(), handle.dropped())
        """,
        OTEL_SDK_DISABLED="true",
    )
    assert out.splitlines() == [
        "ProxyTracerProvider the OpenTelemetry SDK is disabled (OTEL_SDK_DISABLED): only context flows",
        "True ['baggage', 'otelctx', 'traceparent', 'tracestate']",
        "True {}",
    ]


def test_what_goes_to_the_console_is_no_failure_and_is_not_asked_for_an_answer(run: Any) -> None:
    out = run(
        """
        from opentelemetry import trace
        from otelctx.sdk.configure import configure
        handle = configure("x", logs=False)
        trace.get_tracer("app").start_span("to be seen").end()
        check = handle.check()
        print("check:", check.ok, [s.state for s in check.signals], handle.shutdown(), handle.dropped())
        """,
        OTEL_TRACES_EXPORTER="console",
        OTEL_METRICS_EXPORTER="console",
        OTEL_LOGS_EXPORTER="console",
    )
    assert '"name": "to be seen"' in out
    assert "check: True ['ok', 'ok', 'ok'] True {}" in out


REFUSED = [
    ({"OTEL_TRACES_EXPORTER": "zipkin"}, "pip install 'opentelemetry-exporter-zipkin'"),
    ({"OTEL_METRICS_EXPORTER": "nowhere"}, "OTEL_METRICS_EXPORTER takes"),
    ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "takes grpc and http/protobuf"),
    ({"OTEL_EXPORTER_OTLP_COMPRESSION": "lzma"}, "lzma"),
    ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "soon"),
]


@pytest.mark.parametrize(("environment", "told"), [pytest.param(e, t, id=t) for e, t in REFUSED])
def test_what_the_sdk_refuses_is_a_config_error_that_says_what_to_do(
    run: Any, environment: dict[str, str], told: str
) -> None:
    out = run(
        """
        from otelctx.errors import ConfigError
        from otelctx.sdk.configure import configure
        try:
            configure("a", logs=False)
        except ConfigError as error:
            print("refused:", error)
        """,
        **environment,
    )
    assert out.startswith("refused: the OpenTelemetry SDK can't be set up: ")
    assert told in out
