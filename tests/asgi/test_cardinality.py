"""Whatever strangers send, spans are as the conventions say and metrics get no series from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from otelctx.context.current import session

METHODS = ("GET", "POST", "DELETE", "FOO", "get", "\u00ff", "X" * 300)
TEXT = st.text(st.characters(), max_size=40)
BYTES = st.binary(max_size=40)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [b"host", b"user-agent", b"traceparent", b"tracestate", b"baggage", b"otelctx", b"x-forwarded-for"]
        )
        | BYTES,
        BYTES,
    ),
    max_size=6,
)
REQUESTS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(METHODS),
        "path": TEXT,
        "headers": HEADERS,
        "query_string": BYTES,
        "scheme": st.sampled_from(["http", "https"]) | TEXT,
        "http_version": st.sampled_from(["1.0", "1.1", "2", "3"]) | TEXT,
        "client": st.none() | st.tuples(TEXT, st.none() | st.integers(0, 65535) | TEXT),
        "session": TEXT,
    }
)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


def application(ok: Any, status: int) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        with session(f"s-{abs(hash(scope['path']))}"):
            if status:
                await ok(send, status)
            else:
                raise RuntimeError(scope["path"])

    return app


async def ask(rig: Any, request: dict[str, Any]) -> None:
    options = dict(request)
    options.pop("session")
    with suppress(RuntimeError):
        await rig.request(options.pop("method"), options.pop("path"), options.pop("headers"), **options)


@given(st.lists(REQUESTS, min_size=1, max_size=4), st.sampled_from([200, 404, 503, 0]))
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_request_makes_a_span_that_is_encodable_and_as_the_conventions_say(
    rig: Any, ok: Any, conventions: Any, runner: asyncio.Runner, requests: list[dict[str, Any]], status: int
) -> None:
    made = rig(application(ok, status))
    for request in requests:
        runner.run(ask(made, request))
    assert len(made.spans) == len(requests)
    assert conventions.spans(made.spans) == []
    assert conventions.metrics(made.reader.get_metrics_data()) == []
    assert encode_spans(made.spans).SerializeToString()


@given(st.lists(REQUESTS, min_size=2, max_size=8))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_series_do_not_depend_on_paths_queries_headers_clients_or_sessions(
    rig: Any, ok: Any, conventions: Any, runner: asyncio.Runner, requests: list[dict[str, Any]]
) -> None:
    made = rig(application(ok, 200))
    for request in requests:
        runner.run(ask(made, request | {"method": "GET", "scheme": "http", "http_version": "1.1"}))
    point = (("http.request.method", "GET"), ("http.response.status_code", 200), ("network.protocol.version", "1.1"))
    durations = {series for series in conventions.series(made.reader.get_metrics_data()) if "duration" in series[0]}
    assert durations == {("http.server.request.duration", (*point, ("url.scheme", "http")))}


@given(st.lists(REQUESTS, min_size=2, max_size=8))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_methods_schemes_and_versions_make_no_more_series_than_there_are_in_the_standards(
    rig: Any, ok: Any, conventions: Any, runner: asyncio.Runner, requests: list[dict[str, Any]]
) -> None:
    made = rig(application(ok, 200))
    for request in requests:
        runner.run(ask(made, request))
    for name, attributes in conventions.series(made.reader.get_metrics_data()):
        values = dict(attributes)
        if name.startswith("http."):
            assert values["http.request.method"] in ("GET", "POST", "DELETE", "_OTHER")
            assert values["url.scheme"] in ("http", "https", "ws", "wss", "_OTHER")
            assert values.get("network.protocol.version") in (None, "1.0", "1.1", "2", "3")
