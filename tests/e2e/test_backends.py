"""SDK → collector → Jaeger, read back through Jaeger's APIs."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Tracer

from otelctx import semconv
from otelctx.errors import ConfigError
from otelctx.testing.backends import Collector, Jaeger, find
from otelctx.testing.receiver import OtlpReceiver

pytestmark = pytest.mark.e2e
COLLECTOR = Path(__file__).parents[2] / "collector"


@contextmanager
def exporting(endpoint: str, service: str) -> Iterator[Tracer]:
    provider = TracerProvider(resource=Resource({"service.name": service}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint, insecure=True)))
    try:
        yield provider.get_tracer("test")
    finally:
        provider.shutdown()


def hex_id(number: int) -> str:
    return f"{number:032x}"


def test_a_trace_reaches_jaeger_whole_and_secrets_do_not(collector: Collector, jaeger: Jaeger) -> None:
    with exporting(collector.endpoint, "round-trip") as tracer:
        with tracer.start_as_current_span("parent", attributes={"note": "mail me at someone@example.org"}) as parent:
            parent.add_event("otelctx.truncation", {semconv.TOKENS_BEFORE: 600, semconv.TOKENS_AFTER: 384})
            with tracer.start_as_current_span("child"):
                pass
        trace_id = hex_id(parent.get_span_context().trace_id)
    spans = {s["operationName"]: s for s in jaeger.wait_for(trace_id, lambda spans: len(spans) == 2)}
    assert spans["child"]["references"][0]["spanID"] == spans["parent"]["spanID"]
    assert "example.org" not in json.dumps(spans)
    assert spans["parent"]["attributes"]["redaction.masked.count"] == 1
    (event,) = spans["parent"]["logs"]
    fields = {f["key"]: f["value"] for f in event["fields"]}
    assert (fields["event"], fields[semconv.TOKENS_BEFORE]) == ("otelctx.truncation", 600)
    exact = jaeger.get(f"/api/v3/traces/{trace_id}")
    assert "resourceSpans" in exact["result"]


def test_an_unknown_trace_is_none_and_an_unknown_path_an_error(jaeger: Jaeger) -> None:
    assert jaeger.trace("0" * 31 + "1") == []
    with pytest.raises(RuntimeError, match="html"):
        jaeger.get("/api/nothing-here")


def test_jaegers_upload_takes_what_the_embedded_receiver_writes(jaeger: Jaeger, tmp_path: Path) -> None:
    with OtlpReceiver() as receiver:
        with exporting(receiver.endpoint, "uploaded") as tracer, tracer.start_as_current_span("only") as span:
            pass
        receiver.wait_for(lambda spans: len(spans) == 1)
        body = receiver.write_json(tmp_path / "traces.json").read_bytes()
    request = urllib.request.Request(f"{jaeger.url}/api/transform", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        document = json.load(answer)
    (trace,) = document["data"]
    assert trace["traceID"] == hex_id(span.get_span_context().trace_id)
    assert trace["spans"][0]["operationName"] == "only"


def test_the_tail_keeps_overflow_and_truncation_and_drops_the_plain(
    start_collector: Callable[..., Collector], jaeger: Jaeger
) -> None:
    """The booleans sit on a child that ends before its root, as they do when the answer is streamed."""
    collector = start_collector(sampling_percentage=0)
    ids: dict[str, str] = {}
    with exporting(collector.endpoint, "tail") as tracer:
        for name, attributes in {
            "plain": {},
            "overflow": {semconv.OVERFLOW: True},
            "truncated": {semconv.TRUNCATED: True},
            "false": {semconv.OVERFLOW: False, semconv.TRUNCATED: False},
        }.items():
            with tracer.start_as_current_span(name) as root, tracer.start_as_current_span("c", attributes=attributes):
                ids[name] = hex_id(root.get_span_context().trace_id)
        with tracer.start_as_current_span("event") as root, tracer.start_as_current_span("c") as child:
            child.add_event(semconv.EVENT_EVICTION)
            ids["event"] = hex_id(root.get_span_context().trace_id)
        # Decisions are made in the order of arrival, so once the last trace is there the others have been decided.
        with tracer.start_as_current_span("last", attributes={semconv.DEGRADED: True}) as root:
            ids["last"] = hex_id(root.get_span_context().trace_id)
    for kept in ("overflow", "truncated", "event"):
        jaeger.wait_for(ids[kept], lambda spans: len(spans) == 2)
    jaeger.wait_for(ids["last"], lambda spans: len(spans) == 1)
    assert jaeger.trace(ids["plain"]) == []
    assert jaeger.trace(ids["false"]) == []


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("otelctx-collector", ["otelctx-collector.yaml"]),
        ("otelctx-collector", ["otelctx-collector.yaml", "with-prometheus.yaml"]),
        ("jaeger", ["jaeger.yaml"]),
    ],
)
def test_the_built_binary_validates_every_shipped_configuration(name: str, files: list[str], tmp_path: Path) -> None:
    try:
        binary = find(name)
    except ConfigError as exc:
        pytest.skip(f"NOT BUILT: {exc}")
    options = [option for file in files for option in ("--config", str(COLLECTOR / file))]
    done = subprocess.run(
        [str(binary), "validate", *options], env={"OTELCTX_STATE_DIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
