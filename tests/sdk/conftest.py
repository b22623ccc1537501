"""The SDK's global providers are set once in a process, so each test of ``configure()`` is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc as logs_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc


class Collector:
    """A gRPC receiver that keeps what it gets: (service name, item name) of spans, metrics and log records."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str]] = []
        self.metrics: list[tuple[str, str]] = []
        self.logs: list[tuple[str, str]] = []
        self.pool = ThreadPoolExecutor(4)
        self.server = grpc.server(self.pool)
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"http://127.0.0.1:{port}"
        collector = self

        class Traces(traces_grpc.TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        collector.spans += [(service(resource), span.name) for span in scope.spans]
                return traces.ExportTraceServiceResponse()

        class Metrics(metrics_grpc.MetricsServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                for resource in request.resource_metrics:
                    for scope in resource.scope_metrics:
                        collector.metrics += [(service(resource), m.name) for m in scope.metrics]
                return metrics.ExportMetricsServiceResponse()

        class Logs(logs_grpc.LogsServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                for resource in request.resource_logs:
                    for scope in resource.scope_logs:
                        collector.logs += [(service(resource), r.body.string_value) for r in scope.log_records]
                return logs.ExportLogsServiceResponse()

        traces_grpc.add_TraceServiceServicer_to_server(Traces(), self.server)
        metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), self.server)
        logs_grpc.add_LogsServiceServicer_to_server(Logs(), self.server)
        self.server.start()


def service(resource: Any) -> str:
    values = {a.key: a.value.string_value for a in resource.resource.attributes}
    return values["service.name"]


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.server.stop(0).wait()
    found.pool.shutdown()


@pytest.fixture
def run() -> Callable[..., str]:
    """Run Python code in a process with ``environment`` added; its standard output and error together."""

    def _run(code: str, timeout: float = 120, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **environment},
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return _run
