"""The process of one server: ``serve.py SERVER PORT CONTROL_PORT``. All applications of the matrix run in it.

Which of them gets a request is decided outside of the middleware, by the request's ``x-app``. A second port, served by
a thread of its own, tells what was recorded: one JSON object a line each way, see :class:`Control`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socketserver
import sys
import threading
from collections import Counter
from importlib import import_module
from typing import Any

import support
from opentelemetry import context, metrics, trace
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otelctx.asgi.entry import Entry
from otelctx.asgi.http import HttpRequest
from otelctx.asgi.recording import Recording
from otelctx.asgi.server_span import ServerSpan
from otelctx.asgi.websocket import Connection, WebSocket
from otelctx.exchange.node import set_default_node
from otelctx.exchange.server import ServerExchange

OF_A_REQUEST = (HttpRequest, WebSocket, Connection, Recording, ServerSpan, Entry, ServerExchange)
MODULES = os.environ["MATRIX_MODULES"].split(",")


class Recorder:
    """Spans, metrics and the calls of the applications since the last :meth:`take`."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader(preferred_temporality={Histogram: AggregationTemporality.DELTA})
        self._calls: dict[str, dict[str, Any]] = {}
        self._tasks: dict[str, tuple[asyncio.Task[Any], asyncio.AbstractEventLoop]] = {}

    def install(self) -> None:
        """The process's own providers, so that whatever a framework records by itself is seen as well."""
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        trace.set_tracer_provider(tracers)
        metrics.set_meter_provider(MeterProvider([self._reader]))

    def started(self, case: str, kind: str) -> dict[str, Any]:
        record: dict[str, Any] = {"type": kind, "seen": [], "marks": [], "during": [], "outcome": None}
        task = asyncio.current_task()
        assert task is not None
        self._tasks[case] = (task, asyncio.get_running_loop())
        self._calls[case] = record
        return record

    def peek(self) -> dict[str, dict[str, Any]]:
        return dict(self._calls)

    def cancel(self, case: str) -> None:
        task, loop = self._tasks[case]
        loop.call_soon_threadsafe(task.cancel)

    def take(self) -> dict[str, Any]:
        """Everything, and begin anew."""
        spans = [_span(span) for span in self._exporter.get_finished_spans()]
        self._exporter.clear()
        calls, self._calls = self._calls, {}
        self._tasks = {}
        return {"spans": spans, "calls": calls, "metrics": self._metrics()}

    def _metrics(self) -> dict[str, list[dict[str, Any]]]:
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        found: dict[str, list[dict[str, Any]]] = {}
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:  # one of a framework's own would have the same name
                    found.setdefault(metric.name, []).extend(_point(point) for point in metric.data.data_points)
        return found


def _point(point: Any) -> dict[str, Any]:
    counted = {"count": point.count, "sum": point.sum} if hasattr(point, "count") else {"value": point.value}
    return {**counted, "attributes": dict(point.attributes)}


def _span(span: Any) -> dict[str, Any]:
    return {
        "name": span.name,
        "kind": span.kind.name,
        "trace_id": f"{span.context.trace_id:032x}",
        "span_id": f"{span.context.span_id:016x}",
        "parent_id": None if span.parent is None else f"{span.parent.span_id:016x}",
        "status": span.status.status_code.name,
        "attributes": dict(span.attributes),
        "events": [event.name for event in span.events],
        "links": [f"{link.context.span_id:016x}" for link in span.links],
        "started": span.start_time,
        "ended": span.end_time,
        "scope": span.instrumentation_scope.name,
    }


class Dispatcher:
    """The ASGI application that the server is given."""

    def __init__(self, recorder: Recorder, apps: dict[str, Any]) -> None:
        self._recorder = recorder
        self._apps = apps

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await lifespan(self._apps.values(), receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if root := headers.get(b"x-root-path"):
            scope["root_path"] = root
        record = self._recorder.started(headers.get(b"x-case", "?"), scope["type"])
        record["extensions"] = sorted(scope.get("extensions") or ())
        record["style"] = headers.get(b"x-style")
        support.call.set(record)
        before = context.get_current()
        try:
            await self._apps[headers[b"x-app"]](scope, receive, send)
        except BaseException as error:
            record["outcome"] = type(error).__name__
            raise
        else:
            record["outcome"] = "returned"
        finally:
            record["restored"] = context.get_current() is before


async def lifespan(apps: Any, receive: Any, send: Any) -> None:
    """Every application's own lifespan, through its middleware; one that has none says so by raising."""
    queues: list[tuple[asyncio.Queue[Any], asyncio.Queue[Any], asyncio.Task[None]]] = []
    for app in apps:
        incoming: asyncio.Queue[Any] = asyncio.Queue()
        outgoing: asyncio.Queue[Any] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        queues.append((incoming, outgoing, asyncio.create_task(app(scope, incoming.get, outgoing.put))))
    while True:
        message = await receive()
        for incoming, outgoing, task in queues:
            await incoming.put(message)
            said = asyncio.create_task(outgoing.get())
            await asyncio.wait({said, task}, return_when=asyncio.FIRST_COMPLETED)
            if said.done() and said.result()["type"].endswith(".failed"):
                raise RuntimeError(said.result())
            said.cancel()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def alive() -> dict[str, int]:
    """How many objects there are of what exists once a request."""
    gc.collect()
    return dict(Counter(type(each).__name__ for each in gc.get_objects() if type(each) in OF_A_REQUEST))


class Control(socketserver.StreamRequestHandler):
    """``{"op": "take"}``, ``{"op": "peek"}`` (calls only), ``{"op": "cancel", "case": …}``, ``{"op": "forget"}`` (the
    process knows no session any more), ``{"op": "alive"}`` (objects of requests that are still held, by class).
    """

    recorder: Recorder

    def handle(self) -> None:
        for line in self.rfile:
            asked = json.loads(line)
            answer: Any = {}
            if asked["op"] == "cancel":
                self.recorder.cancel(asked["case"])
            elif asked["op"] == "forget":
                set_default_node(None)
            elif asked["op"] == "alive":
                answer = alive()
            else:
                answer = self.recorder.take() if asked["op"] == "take" else self.recorder.peek()
            self.wfile.write(json.dumps(answer).encode() + b"\n")


def build() -> Dispatcher:
    """The application; also starts to answer on the control port."""
    recorder = Recorder()
    recorder.install()
    Control.recorder = recorder
    server = socketserver.ThreadingTCPServer(("127.0.0.1", int(os.environ["MATRIX_CONTROL"])), Control)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    modules = [import_module(f"apps.{name}") for name in MODULES]
    return Dispatcher(recorder, {name: make() for module in modules for name, make in module.VARIANTS.items()})


def uvicorn(port: int, http: Any, ws: Any, loop: Any) -> None:
    from uvicorn import run

    run(build(), host="127.0.0.1", port=port, http=http, ws=ws, loop=loop, log_level="info", access_log=False)


def hypercorn(port: int) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    asyncio.run(serve(build(), config))


def gunicorn(port: int) -> None:
    """A master, and one worker that makes the application after it was forked."""
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    options = ["--bind", f"127.0.0.1:{port}", "--worker-class", "uvicorn_worker.UvicornWorker", "--no-control-socket"]
    os.execv(sys.executable, [sys.executable, "-m", "gunicorn", *options, "serve:build()"])


def granian(port: int) -> None:
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    options = ["--interface", "asgi", "--host", "127.0.0.1", "--port", str(port), "--no-access-log"]
    os.execv(sys.executable, [sys.executable, "-m", "granian", "--factory", *options, "serve:build"])


SERVERS = {
    "uvicorn-h11": lambda port: uvicorn(port, "h11", "wsproto", "asyncio"),
    "uvicorn-httptools": lambda port: uvicorn(port, "httptools", "websockets-sansio", "uvloop"),
    "hypercorn": hypercorn,
    "gunicorn": gunicorn,
    "granian": granian,
}

if __name__ == "__main__":
    SERVERS[sys.argv[1]](int(sys.argv[2]))
