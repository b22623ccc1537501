"""Headers on spans, and hosts on metrics: what was asked for, and nothing that is a credential."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx import errors
from otelctx.asgi.capture import MAX_KEYS, MAX_TEXT, MAX_VALUES, capture
from otelctx.asgi.extras import extras
from otelctx.asgi.hosts import known_hosts

BASE = "http.request.header"
NONE: dict[str, Any] = {"capture_request_headers": (), "capture_response_headers": ()}
NONE |= {"body_sizes": False, "metric_hosts": ()}


def captured(patterns: str | list[str], *lines: tuple[bytes, bytes]) -> dict[str, Any]:
    found = capture("option", patterns, BASE)
    assert found is not None
    return {key.removeprefix(f"{BASE}."): values for key, values in found.attributes(lines).items()}


def test_names_are_captured_whatever_their_case_with_all_their_values_in_order() -> None:
    lines = [(b"X-Tenant", b"a"), (b"other", b"no"), (b"x-tenant", b"b, c")]
    assert captured(["X-TENANT"], *lines) == {"x-tenant": ("a", "b, c")}
    assert captured("x-tenant", *lines) == {"x-tenant": ("a", "b, c")}


def test_a_star_captures_what_begins_like_it() -> None:
    lines = [(b"x-a", b"1"), (b"X-B", b"2"), (b"y-x-a", b"3")]
    assert captured(["x-*", "y-other"], *lines) == {"x-a": ("1",), "x-b": ("2",)}
    assert captured("*", *lines) == {"x-a": ("1",), "x-b": ("2",), "y-x-a": ("3",)}
    assert captured("x-exact", *lines) == {}


@pytest.mark.parametrize(
    "name",
    ["authorization", "Cookie", "set-cookie", "proxy-authorization", "x-api-key", "otelctx", "otelctx-ack", "baggage"],
)
@pytest.mark.parametrize("by_name", [True, False])
def test_credentials_and_context_are_never_captured_as_they_are(name: str, by_name: bool) -> None:
    patterns = [name] if by_name else ["*"]
    line = (name.encode(), b"Bearer hunter2")
    assert captured(patterns, line, line) == {name.lower(): ("[REDACTED]", "[REDACTED]")}


@pytest.mark.parametrize("name", ["x-session-id", "x-my-token", "x-secret", "x-authority", "x-functions-key"])
def test_what_only_sounds_like_a_credential_is_captured_by_its_name_and_not_by_a_star(name: str) -> None:
    assert captured([name], (name.encode(), b"v")) == {name: ("v",)}
    assert captured(["x-*"], (name.encode(), b"v")) == {name: ("[REDACTED]",)}


def test_names_values_and_their_length_are_bounded() -> None:
    lines = [(b"x-%d" % n, b"v") for n in range(100)] + [(b"x-0", b"w" * 5000)] * 50 + [(b"x-" + b"n" * 100, b"v")]
    found = captured("x-*", *lines)
    assert len(found) == MAX_KEYS
    assert len(found["x-0"]) == MAX_VALUES
    assert len(found["x-0"][1]) == MAX_TEXT


def test_a_name_that_only_a_pattern_has_asked_for_has_at_most_64_characters() -> None:
    longest = "x-" + "n" * 62
    lines = [(longest.encode(), b"v"), (longest.encode() + b"n", b"v")]
    assert captured("x-*", *lines) == {longest: ("v",)}
    assert captured(longest + "n", *lines) == {longest + "n": ("v",)}


async def test_lines_that_are_not_as_asgi_has_them_are_the_servers_to_refuse(rig: Any) -> None:
    """Some take text."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [("x-a", "1"), ("x-b",)][:count]})
        await send({"type": "http.response.body", "body": b"ok"})

    r = rig(app, capture_response_headers="x-*")
    count = 1
    assert (await r.request()).body == b"ok"
    assert r.span.attributes["http.response.status_code"] == 200


@given(st.lists(st.tuples(st.binary(max_size=80), st.binary(max_size=600)), max_size=60))
def test_any_bytes_make_attributes_that_can_be_exported(lines: list[tuple[bytes, bytes]]) -> None:
    found = captured(["*", "x-tenant"], *lines)
    assert len(found) <= MAX_KEYS
    for key, values in found.items():
        assert len(key.encode()) <= 200
        assert all(len(value.encode()) <= 2 * MAX_TEXT + 2 for value in values)


@pytest.mark.parametrize("pattern", ["", "x y", "x*y", "**", "x:", "é", "x\n"])
def test_what_cannot_be_a_headers_name_is_refused(pattern: str) -> None:
    with pytest.raises(errors.ConfigError, match="capture_request_headers"):
        extras(**NONE | {"capture_request_headers": [pattern]})


def test_nothing_asked_for_is_nothing_to_ask() -> None:
    assert extras(**NONE) is None
    assert extras(**NONE | {"body_sizes": True}) is not None


async def test_captured_headers_are_on_the_server_span_of_a_request(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"X-Version", b"7"), (b"b", b"c")]})
        await send({"type": "http.response.body"})

    r = rig(app, capture_request_headers=["x-tenant", "authorization"], capture_response_headers=("x-*",))
    await r.request("GET", "/", [(b"X-Tenant", b"\xe9\x00"), (b"authorization", b"s3cret"), (b"accept", b"*/*")])
    found = {key: value for key, value in r.span.attributes.items() if ".header." in key}
    assert found == {
        "http.request.header.x-tenant": ("é�",),
        "http.request.header.authorization": ("[REDACTED]",),
        "http.response.header.x-version": ("7",),
    }
    assert not any(".header." in key for key in r.point())


async def test_captured_headers_are_on_the_handshake_of_a_websocket(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept", "headers": [(b"x-version", b"7")]})

    r = rig(app, capture_request_headers="x-tenant", capture_response_headers="x-version")
    await r.websocket("/", [], {"x-tenant": "a"})
    handshake = next(s for s in r.spans if s.kind.name == "SERVER")
    assert handshake.attributes["http.request.header.x-tenant"] == ("a",)
    assert handshake.attributes["http.response.header.x-version"] == ("7",)


async def test_an_excluded_path_captures_nothing(rig: Any, ok: Any) -> None:
    options = {"capture_request_headers": "*", "capture_response_headers": "*", "body_sizes": True}
    r = rig(lambda scope, receive, send: ok(send), excluded="/", **options)
    assert (await r.request("GET", "/", {"x-tenant": "a"})).status == 200
    assert r.spans == []


# hosts


async def test_only_hosts_that_are_listed_are_on_metrics(rig: Any, ok: Any) -> None:
    """Anybody can send any Host header."""
    r = rig(lambda scope, receive, send: ok(send), metric_hosts=["api.example.org", "api.example.org:8443"])
    for host in ("api.example.org", "API.example.org:8443", "evil.example.net"):
        await r.request("GET", "/", {"host": host})
    await r.request("GET", "/")
    points = r.points("http.server.request.duration")
    seen = {(p.attributes.get("server.address"), p.attributes.get("server.port")): p.count for p in points}
    assert seen == {("api.example.org", None): 1, ("api.example.org", 8443): 1, (None, None): 2}


def test_hosts_are_as_clients_send_them() -> None:
    assert known_hosts(()) is None
    assert known_hosts("[::1]:80") == {b"[::1]:80": {"server.address": "::1", "server.port": 80}}
    assert known_hosts(["[::1]"]) == {b"[::1]": {"server.address": "::1"}}
    for wrong in ("https://x", "x:y", ":80", "", "x:", "é"):
        with pytest.raises(errors.ConfigError, match="metric_hosts"):
            known_hosts([wrong])


def test_a_credential_in_a_url_in_a_header_is_redacted() -> None:
    line = (b"Referer", b"https://u:s3cret@h/?token=s3cret&a=1")
    assert captured("referer", line) == {"referer": ("https://REDACTED:REDACTED@h/?token=REDACTED&a=1",)}
