"""A collector that answers, and slowly: what it takes arrives, what it has no time for is counted, no end waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otelctx.sdk.finding import find_pipelines
from otelctx.sdk.handle import Handle
from otelctx.sdk.providers import Provider

QUEUE, BATCH, ITEMS = 16, 4, 30
NEVER = 3_600_000  # milliseconds


class Slow:
    """Takes a batch at once, and says so when it is let."""

    def __init__(self) -> None:
        self.spans = 0
        self.came, self.may = threading.Semaphore(0), threading.Semaphore(0)

    def take(self, body: bytes) -> bytes:
        request = traces.ExportTraceServiceRequest.FromString(body)
        self.spans += sum(len(scope.spans) for found in request.resource_spans for scope in found.scope_spans)
        self.came.release()
        self.may.acquire()
        return traces.ExportTraceServiceResponse().SerializeToString()

    def answer(self, batches: int = 1) -> None:
        self.may.release(batches)


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.answer(1000)


@pytest.fixture
def http_exporter(slow: Slow) -> Iterator[HttpExporter]:
    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            answer = slow.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    exporter = HttpExporter(endpoint=f"http://127.0.0.1:{server.server_port}/v1/traces", timeout=3600)
    yield exporter
    slow.answer(1000)
    exporter.shutdown()
    server.shutdown()
    server.server_close()
    serving.join()


@pytest.fixture
def grpc_exporter(slow: Slow) -> Iterator[GrpcExporter]:
    class Traces(traces_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            return traces.ExportTraceServiceResponse.FromString(slow.take(request.SerializeToString()))

    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        traces_grpc.add_TraceServiceServicer_to_server(Traces(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        exporter = GrpcExporter(endpoint=f"127.0.0.1:{port}", insecure=True, timeout=3600)
        yield exporter
        slow.answer(1000)
        exporter.shutdown()
        server.stop(0).wait()


@pytest.fixture(params=["grpc", "http"])
def made(request: pytest.FixtureRequest, slow: Slow) -> Iterator[Any]:
    """``emit(count)``, the handle, and the pipeline that is watched."""
    exporter = request.getfixturevalue(f"{request.param}_exporter")
    provider = TracerProvider(shutdown_on_exit=False)
    processor = BatchSpanProcessor(
        exporter, max_queue_size=QUEUE, max_export_batch_size=BATCH, schedule_delay_millis=NEVER
    )
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("test")

    def emit(count: int) -> None:
        for _ in range(count):
            tracer.start_span("s").end()

    handle = Handle([Provider("traces", lambda: provider, ours=True)])
    (pipeline,) = find_pipelines("traces", provider)
    yield emit, handle, pipeline
    slow.answer(1000)
    provider.shutdown()
    for thread in threading.enumerate():
        if thread.name.startswith("otelctx-shutdown"):
            thread.join(60)


def taken(slow: Slow) -> None:
    assert slow.came.acquire(timeout=60)


def test_what_there_is_no_time_for_is_counted_and_the_end_does_not_wait_for_it(made: Any, slow: Slow) -> None:
    emit, handle, pipeline = made
    emit(BATCH)
    taken(slow)
    emit(ITEMS)
    assert handle.dropped() == {"traces": {"queue_full": ITEMS - QUEUE}}, "while the first answer is waited for"
    slow.answer()
    taken(slow)
    assert pipeline.delivered == BATCH, "late, and not lost"
    emit(BATCH + 1)
    assert handle.dropped()["traces"] == {"queue_full": ITEMS - QUEUE + 1}, "what was taken has made room"
    assert not handle.shutdown(0.05), "and it has come back, though the answer is still to come"
    lost = handle.dropped()["traces"]
    assert lost == {"queue_full": ITEMS - QUEUE + 1, "shutdown": QUEUE + BATCH}
    assert pipeline.delivered + sum(lost.values()) == BATCH + ITEMS + BATCH + 1
    slow.answer(1000)
    assert handle.dropped()["traces"] == lost, "an answer after the end changes no count"


def test_an_end_that_lasts_as_long_as_the_collector_needs_loses_nothing(made: Any, slow: Slow) -> None:
    emit, handle, pipeline = made
    emit(BATCH * 3)
    answering = threading.Thread(target=answer_each, args=(slow, 3))
    answering.start()
    assert handle.shutdown(60)
    answering.join()
    assert (pipeline.delivered, slow.spans, handle.dropped()) == (BATCH * 3, BATCH * 3, {})


def answer_each(slow: Slow, batches: int) -> None:
    for _ in range(batches):
        taken(slow)
        slow.answer()
