"""A child that is forked with its parent's connections warm: over HTTP each talks through its own, TLS or not."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork there")

FORKED = """
    import os
    from opentelemetry import trace
    from otelctx.sdk.configure import configure
    handle = configure("forking", logs=False)
    tracer, flush = trace.get_tracer("app"), trace.get_tracer_provider().force_flush
    for number in range(3):
        tracer.start_span(f"parent before {number}").end()
        flush()
    tracer.start_span("parent queued").end()
    pid = os.fork()
    if pid == 0:
        for number in range(2):
            tracer.start_span(f"child {number}").end()
            flush()
        os._exit(0 if handle.shutdown(20) and not handle.dropped() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    for number in range(3):
        tracer.start_span(f"parent after {number}").end()
        flush()
    assert handle.shutdown(20) and not handle.dropped()
"""


class Collector:
    """Keeps the names of spans by the connection that they came through."""

    def __init__(self, certificate: Path | None, key: Path | None) -> None:
        self.connections: dict[int, list[str]] = {}
        kept = self.connections

        class Answer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
                scopes = [scope for found in request.resource_spans for scope in found.scope_spans]
                kept.setdefault(self.client_address[1], []).extend(s.name for scope in scopes for s in scope.spans)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.endpoint = f"{scheme}://localhost:{self.server.server_port}"
        self._serving = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._serving.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._serving.join()


@pytest.fixture(params=["http", "https"])
def collector(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Collector, dict[str, str]]]:
    """A collector, and the variables that lead to it."""
    certificate = key = None
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_METRICS_EXPORTER": "none"}
    if request.param == "https":
        openssl = shutil.which("openssl")
        if openssl is None:
            pytest.skip("openssl is not installed")
        certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
        kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        command = [openssl, "req", *kind, "-keyout", str(key), "-out", str(certificate), *name]
        subprocess.run(command, check=True, capture_output=True)
        environment["OTEL_EXPORTER_OTLP_CERTIFICATE"] = str(certificate)
        environment |= {"REQUESTS_CA_BUNDLE": "", "CURL_CA_BUNDLE": ""}  # they go before it
    found = Collector(certificate, key)
    yield found, environment | {"OTEL_EXPORTER_OTLP_ENDPOINT": found.endpoint}
    found.close()


def test_a_child_shares_no_connection_with_its_parent_and_nothing_is_lost_or_sent_twice(
    run: Any, collector: tuple[Collector, dict[str, str]]
) -> None:
    """opentelemetry-python #3307. Two processes that write into one connection mix up what they send and what they are
    answered; and what a child closes must not end what its parent is using."""
    found, environment = collector
    run(FORKED, **environment)
    by_connection = list(found.connections.values())
    before, after = [f"parent before {n}" for n in range(3)], [f"parent after {n}" for n in range(3)]
    assert by_connection == [[*before, "parent queued", *after], ["child 0", "child 1"]]
