"""Applications for :mod:`benchmarks._uvicorn`, each with the tracing that its name says.

Spans go through a real batch processor and metrics through a real periodic reader, to exporters that throw them away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from time import process_time_ns
from typing import Any, Final

from opentelemetry import metrics, trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import NoOpTracerProvider

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.exchange.node import Node
from otelctx.settings import Settings

__all__ = ["APPLICATIONS", "LOADED", "QUIET", "application"]

App = Any
# What wrk is let loose on, in processes of their own; and what is compared by CPU time, in one.
LOADED: Final = ("bare", "ours", "contrib", "starlette", "fastapi_bare", "fastapi_ours", "fastapi_native")
QUIET: Final = (
    "bare",
    "disabled",
    "absent",
    "excluded",
    "unsampled_without_metrics",
    "metrics_only",
    "unsampled",
)


class _NoSpans(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class _NoMetrics(MetricExporter):
    def export(self, metrics_data: Any, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        pass


def _tracers(sampler: Sampler = ALWAYS_ON) -> TracerProvider:
    made = TracerProvider(sampler)
    made.add_span_processor(BatchSpanProcessor(_NoSpans()))
    return made


def _meters() -> MeterProvider:
    return MeterProvider([PeriodicExportingMetricReader(_NoMetrics(), export_interval_millis=1000)])


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


async def _cpu(scope: Any, receive: Any, send: Any) -> None:
    """The nanoseconds of CPU time that this process has used."""
    await receive()
    body = str(process_time_ns()).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _switch(apps: Mapping[str, App]) -> App:
    async def switch(scope: Any, receive: Any, send: Any) -> None:
        await apps[scope["path"]](scope, receive, send)

    return switch


def _quiet() -> App:
    """All of ``QUIET`` in one process, each under its own path, so that nothing but the middleware differs."""
    node, meters, off = Node(Settings()), _meters(), _tracers(ALWAYS_OFF)
    noop: Any = {"tracer_provider": NoOpTracerProvider(), "meter_provider": NoOpMeterProvider()}
    apps = {
        "disabled": ContextMiddleware(plain, node=node, **noop),
        "absent": ContextMiddleware(plain, node=node),
        "metrics_only": ContextMiddleware(
            plain, node=node, tracer_provider=NoOpTracerProvider(), meter_provider=meters
        ),
        "unsampled": ContextMiddleware(plain, node=node, tracer_provider=off, meter_provider=meters),
        "unsampled_without_metrics": ContextMiddleware(plain, node=node, tracer_provider=off, metrics=False),
        "excluded": ContextMiddleware(
            plain, node=node, excluded="/excluded", tracer_provider=_tracers(), meter_provider=meters
        ),
    }
    return _switch({"/bare": plain, "/cpu": _cpu, **{f"/{name}": app for name, app in apps.items()}})


def _contrib() -> App:
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

    return OpenTelemetryMiddleware(plain)


def _starlette() -> App:
    from starlette.middleware.opentelemetry import OpenTelemetryMiddleware

    return OpenTelemetryMiddleware(plain)


def _fastapi() -> App:
    from fastapi import FastAPI, Response

    app = FastAPI(openapi_url=None)

    @app.get("/chat")
    async def chat() -> Response:
        return Response(b"{}", media_type="application/json")

    return app


def _fastapi_bare() -> App:
    inner = _fastapi()

    async def untraced(scope: Any, receive: Any, send: Any) -> None:
        scope["fastapi.telemetry"] = None
        await inner(scope, receive, send)

    return untraced


APPLICATIONS: Final[Mapping[str, Callable[[], App]]] = {
    "bare": lambda: plain,
    "ours": lambda: ContextMiddleware(plain),
    "contrib": _contrib,
    "starlette": _starlette,
    "fastapi_bare": _fastapi_bare,
    "fastapi_ours": lambda: ContextMiddleware(_fastapi()),
    "fastapi_native": _fastapi,
    "quiet": _quiet,
}


def application(name: str) -> App:
    """The application called ``name``; but for ``quiet`` the process gets its providers. Raises ``KeyError``."""
    os.environ.pop("OTEL_SDK_DISABLED", None)
    make = APPLICATIONS[name]
    if name != "quiet":
        trace.set_tracer_provider(_tracers())
        metrics.set_meter_provider(_meters())
    return make()
