"""A slow request in a histogram leads to its trace."""

from __future__ import annotations

from typing import Any

from otelctx.testing.receiver import OtlpReceiver

CODE = """
    import asyncio
    from otelctx.asgi.middleware import ContextMiddleware
    from otelctx.sdk.configure import configure
    handle = configure("exemplary", logs=False)
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    async def send(message):
        pass
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [], "scheme": "http",
             "http_version": "1.1", "server": ("h", 80), "client": ("c", 1), "asgi": {"version": "3.0"}}
    asyncio.run(ContextMiddleware(app)(scope, receive, send))
"""


def test_the_exemplar_of_a_request_has_the_ids_of_its_span(run: Any) -> None:
    with OtlpReceiver() as receiver:
        run(CODE, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint)
        (span,) = receiver.spans()
        exemplars = [
            (e.trace_id.hex(), e.span_id.hex())
            for resource in receiver._metrics.list()
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "http.server.request.duration"
            for point in metric.histogram.data_points
            for e in point.exemplars
        ]
    assert exemplars == [(span.trace_id, span.span_id)]
