"""The edge with all that is real around it: nginx in front, workers as processes that are killed, the trace in
Jaeger."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from otelctx.semconv import GATEWAY_SESSION_HEADER as SESSION
from otelctx.testing.backends import Collector, Jaeger

pytestmark = pytest.mark.e2e

KEYS = "1:" + base64.b64encode(bytes(range(32))).decode()
BODY = {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}
# A worker as ``otelctx serve`` is one, around an engine without a model, which answers slowly and at length.
WORKER = """
import asyncio, sys
import uvicorn
from otelctx.sdk.configure import configure
from otelctx.serving import app
from otelctx.telemetry.instruments import tracer
from otelctx.testing.fake_engine import FakeAdmitted, FakeEngine

class Engine(FakeEngine):
    async def admit(self, request):
        admitted = await super().admit(request)
        chunks = admitted.chunks
        async def traced():
            with tracer().start_as_current_span("chat fake"):
                async for chunk in chunks():
                    yield chunk
                    if request.stream:
                        await asyncio.sleep(0.05)
        admitted.chunks = traced
        return admitted

handle = configure(sys.argv[1])
server = uvicorn.Server(uvicorn.Config(
    app(Engine(reply=["word "] * 60, window=100000)), port=0, log_config=None, ws="none", reset_contextvars=True))
started = server.startup
async def startup(sockets=None):
    await started(sockets)
    print("ready:", "http://127.0.0.1:%d" % server.servers[0].sockets[0].getsockname()[1], flush=True)
server.startup = startup
server.run()
handle.shutdown()
"""


@contextmanager
def process(command: list[str], **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A child process and the URL that its first line names."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OTELCTX_"))}
    env = {**clean, "OTELCTX_KEYS": KEYS, "OTEL_SDK_DISABLED": "true", **environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as child:
        try:
            assert child.stdout is not None
            words = child.stdout.readline().split()
            yield child, next(word for word in words if word.startswith("http://"))
        finally:
            child.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[dict[str, Callable[..., Any]]]:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    with ExitStack() as stack:

        def worker(name: str = "worker", **environment: str) -> tuple[subprocess.Popen[str], str]:
            return stack.enter_context(process([sys.executable, str(script), name], **environment))

        def gateway(*urls: str, port: str = "0", **environment: str) -> tuple[subprocess.Popen[str], str]:
            command = [sys.executable, "-m", "otelctx.cli", "gateway", "--port", port, "--health-interval", "2"]
            for url in urls:
                command += ["--upstream", url]
            return stack.enter_context(process(command, **environment))

        yield {"worker": worker, "gateway": gateway}


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=60) as made:
        yield made


def turn(session: str) -> dict[str, Any]:
    return {**BODY, "otelctx": {"session": session, "mode": "append"}}


def test_a_request_is_one_trace_from_the_edge_to_the_engine(
    start: Any, client: httpx.Client, collector: Collector, jaeger: Jaeger
) -> None:
    to = {
        "OTEL_SDK_DISABLED": "false",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    _, worker = start["worker"]("worker", **to)
    _, edge = start["gateway"](worker, **to)
    trace_id = os.urandom(16).hex()
    headers = {"traceparent": f"00-{trace_id}-{'1' * 16}-01"}
    answer = client.post(f"{edge}/v1/chat/completions", json=BODY, headers=headers)
    assert answer.status_code == 200
    spans = jaeger.wait_for(trace_id, lambda spans: len(spans) >= 4)
    by_id = {s["spanID"]: s for s in spans}
    chain = []
    span = next(s for s in spans if s["operationName"] == "chat fake")
    while span is not None:
        kind = next((t["value"] for t in span["tags"] if t["key"] == "span.kind"), "internal")
        chain.append((span["service"], kind))
        span = by_id.get(next((r["spanID"] for r in span["references"]), ""))
    assert chain == [
        ("worker", "internal"), ("worker", "server"), ("otelctx-gateway", "client"), ("otelctx-gateway", "server"),
    ]  # fmt: skip
    assert len(spans) == 4


def read_and_kill(
    client: httpx.Client, url: str, body: Any, headers: Any, worker: subprocess.Popen[str], got: list[bytes]
) -> None:
    """Read a stream into ``got``, and kill ``worker`` when some of it is here."""
    with client.stream("POST", url, json=body, headers=headers) as answer:
        for piece in answer.iter_raw():
            got.append(piece)
            if len(got) == 5:
                worker.send_signal(signal.SIGKILL)


def test_a_worker_that_is_killed_in_a_stream_is_an_error_and_the_next_turn_goes_elsewhere(
    start: Any, client: httpx.Client
) -> None:
    workers = dict(url for url in [start["worker"]()[::-1], start["worker"]()[::-1]])
    _, edge = start["gateway"](*workers)
    url = f"{edge}/v1/chat/completions"
    session = client.post(url, json=BODY).headers[SESSION]
    mine = {SESSION: session}
    for _ in range(3):
        assert client.post(url, json=turn(session), headers=mine).status_code == 200
    # Whoever holds the session knows it; nobody else does.
    (home,) = [u for u in workers if client.get(f"{u}/v1/sessions/{session}").status_code == 200]
    got: list[bytes] = []
    with pytest.raises(httpx.RemoteProtocolError):
        read_and_kill(client, url, {**turn(session), "stream": True}, mine, workers[home], got)
    told = b"".join(got)
    assert b"upstream_closed" in told
    assert b"[DONE]" not in told
    after = client.post(url, json=turn(session), headers=mine)
    assert after.status_code == 200
    assert client.get(f"{edge}/v1/sessions/{session}", headers=mine).status_code == 200


def test_a_gateway_that_is_started_again_knows_its_sessions(start: Any, client: httpx.Client) -> None:
    (_, one), (_, other) = start["worker"](), start["worker"]()
    first, edge = start["gateway"](one, other)
    session = client.post(f"{edge}/v1/chat/completions", json=BODY).headers[SESSION]
    mine = {SESSION: session}
    client.post(f"{edge}/v1/chat/completions", json=turn(session), headers=mine)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    _, again = start["gateway"](other, one)
    assert client.get(f"{again}/v1/sessions/{session}", headers=mine).json()["id"] == session
    answer = client.get(f"{again}/v1/sessions/{session}", headers={**mine, "authorization": "Bearer x"})
    assert answer.status_code == 404


def test_nginx_in_front_says_who_the_client_is_and_only_a_trusted_one(
    start: Any, client: httpx.Client, start_nginx: Callable[[str], Any]
) -> None:
    seen: list[str] = []
    for trusted, expected in (("127.0.0.1", "203.0.113.9, 127.0.0.1"), ("", "127.0.0.1")):
        with show() as (upstream, headers):
            _, edge = start["gateway"](upstream, OTELCTX_TRUSTED_PROXIES=trusted)
            nginx = start_nginx(f"location / {{ proxy_pass {edge}; proxy_set_header X-Forwarded-For 203.0.113.9; }}")
            forged = {"otelctx": ":AAAA:", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
            assert client.post(nginx.url, content=b"x", headers=forged).status_code == 200
            last = headers[-1]
        seen.append(last["x-forwarded-for"])
        assert last.get("otelctx") != ":AAAA:"
        assert last["traceparent"].split("-")[1] == "a" * 32
        assert seen[-1] == expected


@contextmanager
def show() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """An upstream that keeps the headers that it is sent."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    kept: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.append({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", kept
        finally:
            server.shutdown()
            thread.join()
