"""Whatever a client sends, telemetry neither raises nor becomes unencodable."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from otelctx.asgi import attributes

_name = st.binary(min_size=1, max_size=12) | st.sampled_from(
    [b"traceparent", b"tracestate", b"baggage", b"otelctx", b"OTELCTX", b"otelctx-ack", b"host", b"user-agent", b"X-A"]
)
_headers = st.lists(st.tuples(_name, st.binary(max_size=40)), max_size=8)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    headers=_headers,
    path=st.text(max_size=20),
    query=st.binary(max_size=30),
    method=st.text(max_size=8),
    client=st.none() | st.tuples(st.text(max_size=8), st.none() | st.integers(0, 65535)),
)
@example([(b"user-agent", b"\xff\x5c\x78")], "/", b"", "GET", None)
@example([(b"host", b"[::1]:99999999999999999999")], "/\ud800", b"\xff=\x00&token=\xff", "GET", ("", None))
@example([(b"host", "١:٨".encode())], "/", b"", "get", ("1.2.3.4", 1))
@example([(b"cookie", "🍪".encode()), (b"X-\xe9", b"\xe9\\n")], "/😀", "q=😀&token=😀".encode(), "GET", None)
async def test_any_bytes_are_survived(
    rig: Any, ok: Any, headers: Any, path: str, query: bytes, method: str, client: Any
) -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(scope["headers"])
        await ok(send)

    r = rig(app, excluded="/never*")
    response = await r.request(method, path, headers, query_string=query, client=client)
    assert response.status == 200
    assert len(r.spans) == 1
    encode_spans(r.spans).SerializeToString()
    # Ours never reach the application; baggage does, but for members of ours.
    private = (b"otelctx", b"baggage")
    assert [line for line in seen if not line[0].lower().startswith(private)] == [
        line for line in headers if not line[0].lower().startswith(private)
    ]
    assert not any(name.lower().startswith(b"otelctx") for name, _ in seen)


@pytest.mark.parametrize("method", ["FOO1", "get", "x" * 5000, "", "G\0T"])
async def test_unknown_methods_are_one_method(rig: Any, ok: Any, method: str) -> None:
    """A client invents as many as it likes; neither the span's name nor the metric may follow."""
    r = rig(lambda scope, receive, send: ok(send))
    await r.request(method)
    assert r.span.name == "HTTP"
    assert r.span.attributes["http.request.method"] == "_OTHER"
    assert len(r.span.attributes["http.request.method_original"]) <= 64
    assert r.point()["http.request.method"] == "_OTHER"


@pytest.mark.parametrize(
    ("host", "scheme", "address", "port"),
    [
        ("example.com", "http", "example.com", None),
        ("example.com:80", "http", "example.com", None),
        ("example.com:443", "https", "example.com", None),
        ("example.com:8080", "http", "example.com", 8080),
        ("[2001:db8::1]:8080", "http", "2001:db8::1", 8080),
        ("[2001:db8::1]", "http", "2001:db8::1", None),
        ("2001:db8::1", "http", "2001:db8::1", None),
    ],
)
async def test_the_server_is_whom_the_client_asked_for(
    rig: Any, ok: Any, host: str, scheme: str, address: str, port: int | None
) -> None:
    r = rig(lambda scope, receive, send: ok(send))
    await r.request(headers={"host": host}, scheme=scheme)
    assert r.span.attributes["server.address"] == address
    assert r.span.attributes.get("server.port") == port


async def test_start_attributes(rig: Any, ok: Any) -> None:
    r = rig(lambda scope, receive, send: ok(send))
    await r.request(
        "POST", "/chat/é", {"user-agent": "curl/8", "host": "h:81"}, query_string=b"q=1&api_key=abc", http_version="2"
    )
    assert dict(r.span.attributes) == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "url.path": "/chat/é",
        "url.query": "q=1&api_key=REDACTED",
        "network.protocol.version": "2",
        "server.address": "h",
        "server.port": 81,
        "user_agent.original": "curl/8",
        "network.peer.address": "192.0.2.7",
        "network.peer.port": 4711,
        "client.address": "192.0.2.7",
        "http.response.status_code": 200,
    }


@pytest.mark.parametrize("kind", [tuple, iter])
async def test_headers_are_any_iterable(rig: Any, ok: Any, kind: Any) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(list(scope["headers"]))
        await ok(send)

    r = rig(app)
    scope = {"type": "http", "method": "GET", "path": "/", "headers": kind([(b"x-a", b"1"), (b"otelctx", b"1")])}
    await r.app(scope, None, AsyncMock())
    assert seen == [[(b"x-a", b"1")]]


async def test_what_is_remembered_of_requests_is_bounded_in_bytes(rig: Any, ok: Any) -> None:
    """Some servers take the scheme from a header as it is."""
    r = rig(lambda scope, receive, send: ok(send))
    await r.request(scheme="x")
    known = attributes._kind.cache_info().currsize
    for n in range(5):
        await r.request(scheme="s" * 60000 + str(n), http_version="v" * 60000 + str(n))
    assert attributes._kind.cache_info().currsize <= known + 1
