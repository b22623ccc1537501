"""An OTLP/gRPC receiver in this process, on a free loopback port: opentelemetry-proto's own services, kept in memory.

It holds what it received, bounded, until asked; and writes it as OTLP/JSON, which Jaeger's upload takes.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from pathlib import Path
from threading import Condition
from time import monotonic
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, SeverityNumber
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from otelctx.testing.spans import Point, SeenEvent, SeenLog, SeenSpan

__all__ = ["OtlpReceiver"]

_MAX_MESSAGE: Final = 16 * 2**20
_IDS: Final = frozenset({"traceId", "spanId", "parentSpanId"})
_KINDS: Final = {0: "INTERNAL", 1: "INTERNAL", 2: "SERVER", 3: "CLIENT", 4: "PRODUCER", 5: "CONSUMER"}
_VALUE: Final = {"string_value", "bool_value", "int_value", "double_value", "bytes_value"}
_WITH_SUM: Final = {"histogram", "exponential_histogram", "summary"}
M = TypeVar("M", bound=Message)


class _Kept(Generic[M]):
    """The newest messages that fit into ``limit`` bytes, and how many did not stay."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._messages: deque[tuple[int, M]] = deque()
        self.dropped = 0

    def add(self, messages: Iterable[M]) -> None:
        for message in messages:
            size = message.ByteSize()
            self._messages.append((size, message))
            self._bytes += size
        while self._bytes > self._limit:
            size, _ = self._messages.popleft()
            self._bytes -= size
            self.dropped += 1

    def list(self) -> list[M]:
        return [message for _, message in self._messages]


class OtlpReceiver:
    """Use it as a context manager; ``endpoint`` is what ``OTEL_EXPORTER_OTLP_ENDPOINT`` takes.

    At most ``limit`` bytes of each signal are kept, the oldest dropped first and counted in ``dropped``.
    """

    def __init__(self, *, port: int = 0, limit: int = 256 * 2**20) -> None:
        """``port`` 0 takes a free one. Raises ``RuntimeError`` if the port can't be bound."""
        self._changed = Condition()
        self._spans: _Kept[ResourceSpans] = _Kept(limit)
        self._metrics: _Kept[ResourceMetrics] = _Kept(limit)
        self._logs: _Kept[ResourceLogs] = _Kept(limit)
        self._threads = futures.ThreadPoolExecutor(2, thread_name_prefix="otlp-receiver")
        self._server = grpc.server(
            self._threads,
            options=[("grpc.max_receive_message_length", _MAX_MESSAGE), ("grpc.so_reuseport", 0)],
        )
        for add, servicer in _SERVICES:
            add(servicer(self), self._server)
        self.port: int = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> OtlpReceiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop receiving; what was received stays readable. Idempotent."""
        self._server.stop(0.5).wait()
        self._threads.shutdown()

    # reading

    @property
    def dropped(self) -> int:
        """Parts of export requests that were received and are not kept any more."""
        with self._changed:
            return self._spans.dropped + self._metrics.dropped + self._logs.dropped

    def spans(self, trace_id: str | None = None) -> list[SeenSpan]:
        """All spans received so far, or those of one trace (hex), in the order of their starts."""
        with self._changed:
            batches = self._spans.list()
        return sorted((span for batch in batches for span in _seen(batch, trace_id)), key=lambda span: span.start)

    def traces(self) -> dict[str, list[SeenSpan]]:
        """Spans by trace id."""
        traces: dict[str, list[SeenSpan]] = {}
        for span in self.spans():
            traces.setdefault(span.trace_id, []).append(span)
        return traces

    def metrics(self, name: str) -> list[Point]:
        """The newest points of a metric, one per (resource, attributes); ``service.name`` is added to the
        attributes. Two processes of one service are two resources, so add up what is to be a total."""
        with self._changed:
            resources = self._metrics.list()
        points: dict[tuple[str, str], Point] = {}
        for resource in resources:
            identity = repr(sorted(_attributes(resource.resource.attributes).items()))
            for point in _points(resource, name):
                points[identity, repr(sorted(point.attributes.items()))] = point
        return list(points.values())

    def logs(self) -> list[SeenLog]:
        """All log records received so far, in the order in which they came."""
        with self._changed:
            resources = self._logs.list()
        return [
            _seen_log(record) for resource in resources for scope in resource.scope_logs for record in scope.log_records
        ]

    def log_bodies(self) -> list[str]:
        """Bodies of all log records received so far."""
        return [str(log.body) for log in self.logs()]

    def wait_for(self, complete: Callable[[list[SeenSpan]], bool], timeout: float = 60.0) -> list[SeenSpan]:
        """The spans as soon as ``complete(spans)``; asked at each arrival. Raises ``TimeoutError`` after ``timeout``
        seconds, with the names of what has arrived."""
        deadline = monotonic() + timeout
        with self._changed:
            while not complete(spans := self.spans()):
                left = deadline - monotonic()
                if left <= 0:
                    names = ", ".join(f"{s.service}: {s.name}" for s in spans) or "nothing"
                    raise TimeoutError(f"the spans waited for did not arrive within {timeout:g} s; arrived: {names}")
                self._changed.wait(left)
        return spans

    def write_json(self, path: Path | str) -> Path:
        """Write all spans to ``path`` as OTLP/JSON, that is protobuf's JSON with ids in hex and enums as numbers;
        returns it."""
        with self._changed:
            batches = self._spans.list()
        resources = [_hex_ids(MessageToDict(batch, use_integers_for_enums=True)) for batch in batches]
        path = Path(path)
        path.write_text(json.dumps({"resourceSpans": resources}))
        return path

    # called by the servicers, on gRPC's threads

    def add_spans(self, batches: Iterable[ResourceSpans]) -> None:
        self._add(self._spans, batches)

    def add_metrics(self, batches: Iterable[ResourceMetrics]) -> None:
        self._add(self._metrics, batches)

    def add_logs(self, batches: Iterable[ResourceLogs]) -> None:
        self._add(self._logs, batches)

    def _add(self, kept: _Kept[M], batches: Iterable[M]) -> None:
        with self._changed:
            kept.add(batches)
            self._changed.notify_all()


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:
        self._receiver.add_spans(request.resource_spans)
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> metrics_service_pb2.ExportMetricsServiceResponse:
        self._receiver.add_metrics(request.resource_metrics)
        return metrics_service_pb2.ExportMetricsServiceResponse()


class _Logs(logs_service_pb2_grpc.LogsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> logs_service_pb2.ExportLogsServiceResponse:
        self._receiver.add_logs(request.resource_logs)
        return logs_service_pb2.ExportLogsServiceResponse()


# Generated code has no types.
_SERVICES: Final[tuple[tuple[Any, Any], ...]] = (
    (trace_service_pb2_grpc.add_TraceServiceServicer_to_server, _Traces),
    (metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server, _Metrics),
    (logs_service_pb2_grpc.add_LogsServiceServicer_to_server, _Logs),
)


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind in _VALUE:
        return getattr(value, kind)
    if kind == "array_value":
        return tuple(_plain(item) for item in value.array_value.values)
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    return None


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _seen(batch: ResourceSpans, trace_id: str | None) -> Iterator[SeenSpan]:
    service = str(_attributes(batch.resource.attributes).get("service.name", ""))
    for scope in batch.scope_spans:
        for span in scope.spans:
            if trace_id in (None, span.trace_id.hex()):
                yield _seen_span(span, service)


def _seen_span(span: Span, service: str) -> SeenSpan:
    return SeenSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        kind=_KINDS.get(span.kind, "INTERNAL"),
        service=service,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        status=Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
        attributes=_attributes(span.attributes),
        events=tuple(SeenEvent(e.name, e.time_unix_nano, _attributes(e.attributes)) for e in span.events),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
    )


def _seen_log(record: LogRecord) -> SeenLog:
    return SeenLog(
        name=record.event_name,
        body=_plain(record.body),
        time=record.time_unix_nano,
        severity=SeverityNumber.Name(record.severity_number).removeprefix("SEVERITY_NUMBER_"),
        attributes=_attributes(record.attributes),
        trace_id=record.trace_id.hex(),
        span_id=record.span_id.hex(),
    )


def _points(resource: ResourceMetrics, name: str) -> Iterator[Point]:
    service = _attributes(resource.resource.attributes).get("service.name", "")
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            kind = metric.WhichOneof("data")
            if metric.name != name or kind is None:
                continue
            for point in getattr(metric, kind).data_points:
                attributes = {"service.name": service, **_attributes(point.attributes)}
                if kind in _WITH_SUM:
                    yield Point(attributes, point.sum, point.count)
                else:
                    yield Point(attributes, point.as_int or point.as_double)


def _hex_ids(node: Any) -> Any:
    # protobuf's JSON has bytes in base64; OTLP/JSON has these three ids in hex.
    if isinstance(node, dict):
        return {key: base64.b64decode(value).hex() if key in _IDS else _hex_ids(value) for key, value in node.items()}
    return [_hex_ids(item) for item in node] if isinstance(node, list) else node
