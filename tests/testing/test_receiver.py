from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from otelctx.testing.receiver import OtlpReceiver


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


@pytest.fixture(scope="module")
def trace_id(receiver: OtlpReceiver) -> str:
    provider = TracerProvider(resource=Resource({"service.name": "svc"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(receiver.endpoint, insecure=True)))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("root", attributes={"n": 1, "flag": True, "list": ["a", "b"]}) as root:
        root.add_event("happened", {"why": "test"})
        with tracer.start_as_current_span("child"):
            pass
    provider.shutdown()
    return f"{root.get_span_context().trace_id:032x}"


def test_spans_come_back_as_they_were(receiver: OtlpReceiver, trace_id: str) -> None:
    root, child = receiver.wait_for(lambda spans: len(spans) == 2)
    assert (root.name, root.parent_id, root.service, root.trace_id) == ("root", "", "svc", trace_id)
    assert child.parent_id == root.span_id
    assert root.attributes == {"n": 1, "flag": True, "list": ("a", "b")}
    assert root.event("happened").attributes == {"why": "test"}
    assert receiver.traces()[trace_id] == receiver.spans(trace_id)
    assert receiver.spans("0" * 32) == []


def test_otlp_json_has_ids_in_hex(receiver: OtlpReceiver, trace_id: str, tmp_path: Path) -> None:
    receiver.wait_for(lambda spans: len(spans) == 2)
    document = json.loads(receiver.write_json(tmp_path / "t.json").read_text())
    spans = [s for r in document["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]]
    assert {s["traceId"] for s in spans} == {trace_id}
    (parent,) = [s["parentSpanId"] for s in spans if "parentSpanId" in s]
    assert parent in {s["spanId"] for s in spans}


def test_metric_points_are_the_newest(receiver: OtlpReceiver) -> None:
    exporter = OTLPMetricExporter(receiver.endpoint, insecure=True)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))
    provider = MeterProvider([reader], resource=Resource({"service.name": "svc"}), shutdown_on_exit=False)
    counter = provider.get_meter("test").create_counter("hits")
    counter.add(1, {"kind": "x"})
    provider.force_flush()
    counter.add(2, {"kind": "x"})
    provider.get_meter("test").create_histogram("size").record(4.0)
    provider.force_flush()
    provider.shutdown()
    (point,) = receiver.metrics("hits")
    assert (point.value, point.attributes) == (3, {"service.name": "svc", "kind": "x"})
    (point,) = receiver.metrics("size")
    assert (point.value, point.count) == (4.0, 1)


def test_waiting_in_vain_says_what_has_arrived(receiver: OtlpReceiver, trace_id: str) -> None:
    with pytest.raises(TimeoutError, match="svc: root"):
        receiver.wait_for(lambda spans: False, timeout=0)


def test_close_is_idempotent_and_keeps_what_was_received() -> None:
    receiver = OtlpReceiver()
    receiver.close()
    receiver.close()
    assert receiver.spans() == []
