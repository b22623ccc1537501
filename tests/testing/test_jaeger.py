"""Jaeger's query API, read: its JSON, its odd answers, and where there is no Jaeger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from otelctx.errors import ConfigError
from otelctx.testing.jaeger import JaegerQuery, fetch, from_jaeger
from otelctx.testing.spans import SeenEvent, SeenSpan

TRACE: dict[str, Any] = {
    "processes": {"p1": {"serviceName": "worker"}},
    "spans": [
        {
            "traceID": "t", "spanID": "s", "processID": "p1", "operationName": "chat m", "startTime": 5,
            "duration": 7,
            "references": [{"refType": "CHILD_OF", "traceID": "t", "spanID": "p"}],
            "tags": [{"key": "span.kind", "value": "server"}, {"key": "n", "value": 3}],
            "logs": [
                {
                    "timestamp": 6,
                    "fields": [{"key": "event", "value": "otelctx.overflow"}, {"key": "k", "value": 1}],
                }
            ],
        }
    ],
}  # fmt: skip
SPAN = SeenSpan(
    "t", "s", "p", "chat m", "SERVER", "worker", 5000, 12000, "UNSET", {"n": 3},
    (SeenEvent("otelctx.overflow", 6000, {"k": 1}),),
)  # fmt: skip
# path → status, content type, body
ANSWERS: dict[str, tuple[int, str, bytes]] = {
    "/api/services": (200, "application/json", b"{}"),
    "/api/traces/t": (200, "text/plain", json.dumps({"data": [TRACE]}).encode()),
    "/api/traces/none": (404, "text/plain", b"trace not found"),
    "/api/nothing-here": (200, "text/html", b"<html>"),
}


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = ANSWERS.get(self.path.partition("?")[0], (404, "text/plain", self.path.encode()))
            self.send_response(status)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.rfile.read(int(self.headers["content-length"])))

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_loopback_is_asked_without_a_proxy(server: str, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", refused)
    assert fetch(f"{server}/x?y=1") == (404, "text/plain", b"/x?y=1")
    assert fetch(f"{server}/x", b"{}")[2] == b"{}"
    assert fetch(f"{refused}/")[0] == 0


def test_jaegers_json_is_read_into_spans(server: str) -> None:
    assert from_jaeger([TRACE]) == [SPAN]
    query = JaegerQuery(f"{server}/")
    query.ready()
    assert query.spans("t") == [SPAN]
    assert query.spans("none") == []
    assert query.link("t") == f"{server}/trace/t"


def test_an_unknown_path_is_no_json(server: str) -> None:
    with pytest.raises(RuntimeError, match="text/html"):
        JaegerQuery(server).get("/api/nothing-here")


def test_where_there_is_no_jaeger_it_is_said(server: str, refused: str) -> None:
    with pytest.raises(ConfigError, match="does not answer"):
        JaegerQuery(refused).ready()
    with pytest.raises(ConfigError, match="is no Jaeger: HTTP 404"):
        JaegerQuery(f"{server}/elsewhere").ready()
    with pytest.raises(ConfigError, match="no URL of a Jaeger"):
        JaegerQuery("file:///etc/passwd")
