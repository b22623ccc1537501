"""The in-process OTLP receiver, fed by the SDK's own exporters and, for what those never send, by hand."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceProto
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
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
    assert {s["kind"] for s in spans} == {Span.SPAN_KIND_INTERNAL}, "OTLP/JSON has enums as numbers"
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


def test_waiting_ends_with_the_span_that_completes_it() -> None:
    with OtlpReceiver() as receiver:
        receiver.add_spans([batch("svc", name="early")])
        timer = Timer(0.05, receiver.add_spans, [[batch("svc", name="late")]])
        timer.start()
        spans = receiver.wait_for(lambda spans: any(s.name == "late" for s in spans))
        timer.join()
    assert {s.name for s in spans} == {"early", "late"}


def test_close_is_idempotent_and_keeps_what_was_received() -> None:
    receiver = OtlpReceiver()
    receiver.add_spans([batch("svc")])
    receiver.close()
    receiver.close()
    assert [s.name for s in receiver.spans()] == ["s"]


def test_a_port_that_is_taken_is_an_error_and_not_shared() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RuntimeError, match="bind"):
        OtlpReceiver(port=taken.getsockname()[1])


def test_the_oldest_goes_when_the_newest_does_not_fit() -> None:
    size = batch("svc", name="0").ByteSize()
    with OtlpReceiver(limit=2 * size) as receiver:
        for number in range(5):
            receiver.add_spans([batch("svc", name=str(number))])
        assert [s.name for s in receiver.spans()] == ["3", "4"]
        assert receiver.dropped == 3


def test_values_of_every_kind_are_plain_values() -> None:
    value = AnyValue(
        kvlist_value=KeyValueList(
            values=[
                KeyValue(key="list", value=AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=1)]))),
                KeyValue(key="bytes", value=AnyValue(bytes_value=b"\x00")),
                KeyValue(key="zero", value=AnyValue(double_value=0.0)),
                KeyValue(key="empty", value=AnyValue()),
            ]
        )
    )
    with OtlpReceiver() as receiver:
        receiver.add_spans([batch("svc", value=value)])
        (span,) = receiver.spans()
    assert span.attributes["v"] == {"list": (1,), "bytes": b"\x00", "zero": 0.0, "empty": None}


def test_points_of_two_processes_of_a_service_stay_apart() -> None:
    with OtlpReceiver() as receiver:
        for instance, value in (("a", 1), ("b", 2), ("a", 3)):
            receiver.add_metrics([points(instance, sum={"data_points": [{"as_int": value}]})])
        found = receiver.metrics("m")
    assert sorted(p.value for p in found) == [2, 3]
    assert {p.attributes["service.name"] for p in found} == {"svc"}


@pytest.mark.parametrize("kind", ["histogram", "exponential_histogram", "summary"])
def test_what_has_a_sum_and_a_count_gives_both(kind: str) -> None:
    with OtlpReceiver() as receiver:
        receiver.add_metrics([points("a", **{kind: {"data_points": [{"sum": 4.5, "count": 3}]}})])
        (point,) = receiver.metrics("m")
    assert (point.value, point.count) == (4.5, 3)


def batch(service: str, *, name: str = "s", value: AnyValue | None = None) -> ResourceSpans:
    span = Span(trace_id=b"\x01" * 16, span_id=b"\x02" * 8, name=name)
    if value is not None:
        span.attributes.append(KeyValue(key="v", value=value))
    resource = ResourceProto(attributes=[text("service.name", service)])
    return ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=[span])])


def points(instance: str, **data: Any) -> ResourceMetrics:
    resource = ResourceProto(attributes=[text("service.name", "svc"), text("service.instance.id", instance)])
    return ResourceMetrics(resource=resource, scope_metrics=[{"metrics": [{"name": "m", **data}]}])


def text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))
