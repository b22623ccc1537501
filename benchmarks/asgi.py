"""``asgi``: what a request costs in the middleware, against every other way to get a SERVER span for it.

All are driven in one process without sockets, with the same request of ten headers, a sampled ``traceparent`` among
them. Times are what the same application costs more than without any of them, in CPU time of the one thread there is.
Spans go to a processor that does nothing and metrics to an in-memory reader, so that no exporter is measured.

``floor``         ours with span, metrics and scope, through the SDK alone: one span with the same attributes and remote
                  parent, one histogram point. Nothing below it can do less.
``contrib``       ours through opentelemetry-instrumentation-asgi as it comes.
``contrib_lean``  the same without its spans for receive and send.
``stream``        ours through it as it comes, for a response of 65 body messages.
``fastapi``       one FastAPI application, traced by ours, through the same traced by itself.
``starlette``     ours without metrics through Starlette's own middleware, which has none.
``session``       ours with a signed REF and an ack, through ``floor``'s other side; no target.
``headers_40``    as ``contrib_lean``, for a request of 40 headers; no target.

``disabled``, ``unsampled``, ``excluded`` are of a real uvicorn: the CPU time that a request has more than one without
the middleware, through the latter's. Without an SDK, with a sampler that is off, on an excluded path; all with the
headers from above. Metrics are recorded of what is not sampled: ``unsampled_without_metrics`` is the rest, and
``unsampled_over_metrics`` what ``unsampled`` has more than ``metrics_only``. ``absent`` is where no provider was set.

Figures named ``load_*`` are of a real uvicorn under wrk: requests per second, and milliseconds of latency.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, MutableMapping
from statistics import median
from time import perf_counter, thread_time, time
from typing import Any, Final

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind

from benchmarks._loaded import load, quiet
from benchmarks.harness import MissingPeer, Report, at_most, interleave, versions
from otelctx.asgi.middleware import ContextMiddleware
from otelctx.context.current import session
from otelctx.exchange import client
from otelctx.exchange.node import Node
from otelctx.semconv import ACK_HEADER
from otelctx.settings import Settings

__all__ = ["run"]

TARGETS: Final = {
    "floor": at_most(1.5),
    "contrib": at_most(0.28),
    "contrib_lean": at_most(0.38),
    "fastapi": at_most(0.65),
    "stream": at_most(0.05),
    "starlette": at_most(0.65),
    "disabled": at_most(0.05),
    "unsampled": at_most(0.05),
    "excluded": at_most(0.05),
}
CHUNKS: Final = 65
TRACEPARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS: Final = [
    (b"host", b"example.com:8000"),
    (b"user-agent", b"python-httpx/0.28.1"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
    (b"content-type", b"application/json"),
    (b"content-length", b"2"),
    (b"authorization", b"Bearer 0123456789"),
    (b"x-request-id", b"7f3c0f0e"),
    (b"traceparent", TRACEPARENT.encode()),
]

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


def request(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/chat",
        "raw_path": b"/chat",
        "query_string": b"",
        "root_path": "",
        "headers": list(headers),
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }


async def receive() -> Message:
    return {"type": "http.request", "body": b"{}", "more_body": False}


async def send(message: Message) -> None:
    pass


async def plain(scope: Message, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b"{}"})


async def stream(scope: Message, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for n in range(CHUNKS):
        await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": n < CHUNKS - 1})


class Bench:
    """Drives applications in turn and compares what each adds to its own bare one."""

    def __init__(self, report: Report, quick: bool) -> None:
        self.report = report
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SpanProcessor())
        self.meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
        self.rounds, self.inner = (3, 20) if quick else (40, 250)
        self.node = Node(Settings())

    def ours(self, app: Any, **options: Any) -> App:
        return ContextMiddleware(
            app, node=self.node, tracer_provider=self.tracers, meter_provider=self.meters, **options
        )

    def overheads(
        self, apps: dict[str, App], bare: str, share: float = 1.0, headers: list[tuple[bytes, bytes]] = HEADERS
    ) -> dict[str, list[float]]:
        """Seconds that each application of ``apps`` takes more than ``bare``, a figure a round."""
        inner = max(1, int(self.inner * share))

        def many(app: App) -> Callable[[], None]:
            async def go() -> None:
                for _ in range(inner):
                    await app(request(headers), receive, send)

            return lambda: runner.run(go())

        with asyncio.Runner() as runner:
            # One thread that never waits: its CPU time is all there is, and other processes don't count.
            times = interleave(
                {name: many(app) for name, app in apps.items()}, rounds=self.rounds, warmup=2, clock=thread_time
            )
        return {
            name: [(one - base) / inner for one, base in zip(found, times[bare], strict=True)]
            for name, found in times.items()
        }

    def compare(self, ratio: str, ours: list[float], theirs: list[float]) -> None:
        self.report.ratios[ratio] = median(one / other for one, other in zip(ours, theirs, strict=True))
        self.report.figures[f"{ratio}_ours_us"] = median(ours) * 1e6
        self.report.figures[f"{ratio}_peer_us"] = median(theirs) * 1e6


def run(quick: bool) -> Report:
    report = Report("asgi", TARGETS)
    report.options["otelctx"] = f"{versions('otelctx')}; defaults, no keys, no trusted clients"
    bench = Bench(report, quick)
    _floor(bench)
    with report.peer("contrib"):
        _contrib(bench)
    with report.peer("fastapi"):
        _fastapi(bench)
    with report.peer("starlette"):
        _starlette(bench)
    with report.peer("uvicorn"):
        quiet(report, HEADERS, quick=quick)
    with report.peer("wrk"):
        load(report, TRACEPARENT, quick=quick)
    return report


def _floor(bench: Bench) -> None:
    bench.report.options["floor"] = f"{versions('opentelemetry-sdk')}; start_as_current_span and Histogram.record"
    tracer = bench.tracers.get_tracer("floor")
    histogram = bench.meters.get_meter("floor").create_histogram("http.server.request.duration", "s")
    parent = propagate.extract({"traceparent": TRACEPARENT}, Context())

    async def floor(scope: Message, receive: Any, send: Any) -> None:
        began = perf_counter()
        attributes: dict[str, Any] = {
            "http.request.method": "POST",
            "url.scheme": "http",
            "url.path": "/chat",
            "network.protocol.version": "1.1",
            "server.address": "example.com",
            "server.port": 8000,
            "user_agent.original": "python-httpx/0.28.1",
            "network.peer.address": "127.0.0.1",
            "network.peer.port": 40000,
            "client.address": "127.0.0.1",
        }
        with tracer.start_as_current_span("POST", parent, SpanKind.SERVER, attributes) as span:
            await plain(scope, receive, send)
            span.set_attribute("http.response.status_code", 200)
            point: dict[str, Any] = {
                "http.request.method": "POST",
                "url.scheme": "http",
                "network.protocol.version": "1.1",
                "http.response.status_code": 200,
            }
            histogram.record(perf_counter() - began, point)

    found = bench.overheads({"bare": plain, "floor": floor, "ours": bench.ours(plain)}, "bare")
    bench.compare("floor", found["ours"], found["floor"])
    node, headers = _session_headers(bench)
    ours = ContextMiddleware(plain, node=node, tracer_provider=bench.tracers, meter_provider=bench.meters)
    with_session = bench.overheads({"bare": plain, "floor": floor, "ours": ours}, "bare", headers=headers)
    bench.compare("session", with_session["ours"], with_session["floor"])


def _session_headers(bench: Bench) -> tuple[Node, list[tuple[bytes, bytes]]]:
    """A worker that holds a session's state, and a request that refers to it."""
    keys = "1:" + base64.b64encode(b"benchmark-key-of-thirty-two-byte").decode()
    caller, callee = Node(Settings(keys=keys)), Node(Settings(keys=keys))
    app = ContextMiddleware(plain, node=callee, tracer_provider=bench.tracers, meter_provider=bench.meters)
    line: list[tuple[str, str]] = []
    with session("chat-1"):
        for _ in range(5):
            now = perf_counter()
            sent = client.begin(
                caller,
                scheme="http",
                host="127.0.0.1",
                port=80,
                method="POST",
                path="/chat",
                body=2,
                now=now,
                unix=time(),
            )
            line = sent.headers
            acks: list[bytes] = []

            async def take(message: Message, acks: list[bytes] = acks) -> None:
                acks.extend(v for n, v in message.get("headers", ()) if n == ACK_HEADER.encode())

            raw = [*HEADERS, *((n.encode(), v.encode()) for n, v in line)]
            asyncio.run(app(request(raw), receive, take))
            sent.close(200, acks, now, time())
    if sent.kind != "ref":
        raise RuntimeError(f"after four exchanges of one state the frame is a {sent.kind}")
    return callee, [*HEADERS, *((n.encode(), v.encode()) for n, v in line)]


def _contrib(bench: Bench) -> None:
    bench.report.options["contrib"] = (
        f"{versions('opentelemetry-instrumentation-asgi')}; defaults, and lean with exclude_spans=[send, receive]"
    )
    try:
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    except ImportError as error:
        raise MissingPeer(str(error)) from error

    def contrib(app: Any, **options: Any) -> App:
        made: App = OpenTelemetryMiddleware(app, tracer_provider=bench.tracers, meter_provider=bench.meters, **options)
        return made

    apps = {
        "bare": plain,
        "contrib": contrib(plain),
        "contrib_lean": contrib(plain, exclude_spans=["send", "receive"]),
        "ours": bench.ours(plain),
    }
    found = bench.overheads(apps, "bare", share=0.5)
    bench.compare("contrib", found["ours"], found["contrib"])
    bench.compare("contrib_lean", found["ours"], found["contrib_lean"])
    many = [*HEADERS, *((b"x-header-%d" % n, b"value %d" % n) for n in range(40 - len(HEADERS)))]
    forty = bench.overheads(apps, "bare", share=0.25, headers=many)
    bench.compare("headers_40", forty["ours"], forty["contrib_lean"])
    streams = {"bare": stream, "contrib": contrib(stream), "ours": bench.ours(stream)}
    long = bench.overheads(streams, "bare", share=0.1)
    bench.compare("stream", long["ours"], long["contrib"])


def _fastapi(bench: Bench) -> None:
    bench.report.options["fastapi"] = f"{versions('fastapi')}; one route; its own tracing and metrics, defaults"
    try:
        from fastapi import FastAPI, Response
    except ImportError as error:
        raise MissingPeer(str(error)) from error

    def make() -> Any:
        app = FastAPI(openapi_url=None)

        @app.post("/chat")
        async def chat() -> Response:
            return Response(b"{}", media_type="application/json")

        return app

    # It traces as soon as global providers exist, so these are set last of all that needs none.
    trace.set_tracer_provider(bench.tracers)
    metrics.set_meter_provider(bench.meters)
    quiet: Any = make()

    async def untraced(scope: Message, receive: Any, send: Any) -> None:
        scope["fastapi.telemetry"] = None
        await quiet(scope, receive, send)

    apps = {"bare": untraced, "native": make(), "ours": bench.ours(make())}
    found = bench.overheads(apps, "bare", share=0.5)
    bench.compare("fastapi", found["ours"], found["native"])


def _starlette(bench: Bench) -> None:
    bench.report.options["starlette"] = f"{versions('starlette')}; OpenTelemetryMiddleware; ours with metrics=False"
    try:
        from starlette.middleware.opentelemetry import OpenTelemetryMiddleware
    except ImportError as error:
        raise MissingPeer(f"this starlette has no OpenTelemetry middleware: {error}") from error
    theirs: Any = OpenTelemetryMiddleware(plain, tracer_provider=bench.tracers)
    apps = {"bare": plain, "starlette": theirs, "ours": bench.ours(plain, metrics=False)}
    found = bench.overheads(apps, "bare")
    bench.compare("starlette", found["ours"], found["starlette"])
