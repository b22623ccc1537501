"""The heads of requests and responses at the edge, without a network."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.errors import OtelctxError
from otelctx.gateway.failures import LoopDetected, MalformedRequest
from otelctx.gateway.head import Limits, RequestHead, below, read, response_headers

HOP = [b"connection", b"keep-alive", b"proxy-authorization", b"te", b"trailer", b"transfer-encoding", b"upgrade"]
TOKEN = st.text("abcdefghijklmnopqrstuvwxyz-_.!", min_size=1, max_size=12).map(str.encode)
NAMES = st.one_of(
    st.sampled_from([*HOP, b"otelctx", b"otelctx-ack", b"OtelCtx-x", b"host", b"content-length", b"via", b"forwarded",
                     b"x-forwarded-for", b"X-Forwarded-Anything", b"x-real-ip", b"expect", b"authorization", b"cookie",
                     b"x-otelctx-session", b"traceparent", b"sec-websocket-key"]),
    TOKEN,
    st.binary(max_size=8),
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from([b"chunked", b"12", b"close, x-a", b"100-continue", b"otelctx-aaaa", b"localhost:80"]),
    st.binary(max_size=20),
)


def scope(*headers: tuple[bytes, bytes], **more: Any) -> dict[str, Any]:
    made = {
        "type": "http", "method": "POST", "scheme": "http", "http_version": "1.1", "path": "/", "raw_path": b"/",
        "query_string": b"", "headers": list(headers), "client": ("10.0.0.9", 5),
    } | more  # fmt: skip
    if made["http_version"] == "1.1" and not any(name.lower() == b"host" for name, _ in headers):
        made["headers"].append((b"host", b"edge.example"))
    return made


def head(*headers: tuple[bytes, bytes], proxy: bool = False, **more: Any) -> RequestHead:
    return read(scope(*headers, **more), Limits(), proxy=proxy, pseudonym=b"otelctx-aaaa")


def _status_or_head(headers: list[tuple[bytes, bytes]], target: bytes, proxy: bool) -> RequestHead | int | None:
    try:
        return head(*headers, proxy=proxy, raw_path=b"/" + target)
    except OtelctxError as error:
        return error.status


@given(st.lists(st.tuples(NAMES, VALUES), max_size=12), st.binary(max_size=30), st.booleans())
def test_any_head_is_refused_with_a_status_or_goes_on_clean(
    headers: list[tuple[bytes, bytes]], target: bytes, proxy: bool
) -> None:
    found = _status_or_head(headers, target, proxy)
    if not isinstance(found, RequestHead):
        assert 400 <= (found or 0) < 600
        return
    names = [name for name, _ in found.lines]
    assert not {*names} & {*HOP, b"host", b"content-length", b"expect", b"forwarded", b"x-real-ip", b"traceparent"}
    assert not any(name.startswith(b"otelctx") for name in names)
    assert names.count(b"via") == 1
    for name, value in found.lines:
        assert re.fullmatch(rb"[!#-'*+.^_`|~0-9a-z-]+", name)
        assert not re.search(rb"[\r\n\0]", value)
    assert re.fullmatch(rb"/[!-~]*|\*", found.target)
    assert not (found.chunked and found.length is not None)
    forwarded = {n: v for n, v in found.lines if n.startswith(b"x-forwarded-")}
    assert set(forwarded) <= {b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"}
    if not proxy:
        assert forwarded[b"x-forwarded-for"] == b"10.0.0.9"


@given(st.lists(st.tuples(NAMES, VALUES), max_size=12), st.sampled_from([200, 204, 304, 500]))
def test_a_responses_headers_lose_what_is_hop_by_hop_and_ours(headers: list[tuple[bytes, bytes]], status: int) -> None:
    lowered = [(name.lower(), value) for name, value in headers]
    names = {name for name, _ in response_headers(lowered, status)}
    assert not names & set(HOP)
    assert not any(name.startswith(b"otelctx") for name in names)
    if status in (204, 304):
        assert b"content-length" not in names


def test_what_connection_names_ends_here_but_credentials_do_not() -> None:
    """Else a client could have the worker see its request without what says whose it is."""
    found = head(
        (b"connection", b"X-A, close, Authorization"), (b"connection", b"x-b"),
        (b"x-a", b"1"), (b"x-b", b"2"), (b"x-c", b"3"), (b"authorization", b"Bearer k"),
    )  # fmt: skip
    assert [n for n, _ in found.lines if not n.startswith(b"x-f") and n != b"via"] == [b"x-c", b"authorization"]


CAME = [
    (b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-proto", b"https"), (b"x-forwarded-host", b"public.example"),
    (b"forwarded", b"for=1.2.3.4"), (b"x-real-ip", b"1.2.3.4"), (b"via", b"1.1 front"), (b"host", b"inner.example"),
]  # fmt: skip


def test_a_stranger_can_not_say_where_a_request_has_come_from() -> None:
    found = dict(head(*CAME).lines)
    assert found[b"x-forwarded-for"] == b"10.0.0.9"
    assert found[b"x-forwarded-proto"] == b"http"
    assert found[b"x-forwarded-host"] == b"inner.example"
    assert found[b"via"] == b"1.1 otelctx-aaaa"


def test_a_trusted_proxy_can() -> None:
    found = dict(head(*CAME, proxy=True).lines)
    assert found[b"x-forwarded-for"] == b"203.0.113.9, 10.0.0.9"
    assert found[b"x-forwarded-proto"] == b"https"
    assert found[b"x-forwarded-host"] == b"public.example"
    assert found[b"via"] == b"1.1 front, 1.1 otelctx-aaaa"
    assert b"forwarded" not in found


def test_a_trusted_proxy_may_add_lines_of_its_own_behind_those_that_it_was_sent() -> None:
    """As HAProxy does: the first line is what a stranger has made up, and the last is what the proxy has seen."""
    names = (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host")
    made_up = [(name, b"made-up") for name in names]
    true = list(zip(names, (b"203.0.113.9", b"https", b"public.example"), strict=True))
    found = dict(head(*made_up, *true, (b"x-forwarded-for", b""), proxy=True).lines)
    assert found[b"x-forwarded-for"] == b"made-up, 203.0.113.9, 10.0.0.9"
    assert (found[b"x-forwarded-proto"], found[b"x-forwarded-host"]) == (b"https", b"public.example")


@pytest.mark.parametrize("proxy", [False, True])
def test_a_loop_is_seen_in_whichever_line_of_via_it_stands(proxy: bool) -> None:
    with pytest.raises(LoopDetected):
        head((b"via", b"1.1 front"), (b"via", b"1.1 otelctx-aaaa"), (b"via", b"1.0 other"), proxy=proxy)


def test_a_peer_without_an_address_is_unknown() -> None:
    assert dict(head(client=None).lines)[b"x-forwarded-for"] == b"unknown"


@pytest.mark.parametrize(
    ("target", "session"),
    [
        (b"/v1/sessions/abc", "abc"),
        (b"/v1/sessions/abc/versions?x=1", "abc"),
        (b"/v1/sessions/abc?x", "abc"),
        (b"/v1/sessions/", ""),
        (b"/v1/sessions", None),
        (b"/v1/chat/completions", None),
    ],
)
def test_a_session_in_a_workers_path_is_one_that_is_stated(target: bytes, session: str | None) -> None:
    assert head(raw_path=target).session == session
    assert head((b"x-otelctx-session", b"s"), raw_path=target).session == "s"


@pytest.mark.parametrize(
    ("target", "raw_path", "query", "expected"),
    [
        (b"/a?", b"/a", b"", b"/a?"),
        (b"http://h/a?b", b"/a", b"b", b"/a?b"),
        (None, b"/a%2f", b"b", b"/a%2f?b"),
        (None, None, b"", b"/p"),
    ],
)
def test_the_target_is_that_of_the_request_line_where_the_server_tells(
    target: bytes | None, raw_path: bytes | None, query: bytes, expected: bytes
) -> None:
    extensions = {} if target is None else {"otelctx.target": target}
    assert head(raw_path=raw_path, path="/p", query_string=query, extensions=extensions).target == expected


def test_a_request_names_a_host_unless_it_is_of_an_age_before_that() -> None:
    with pytest.raises(MalformedRequest, match="host"):
        read(scope() | {"headers": []}, Limits(), proxy=False, pseudonym=b"p")
    assert read(scope(http_version="1.0"), Limits(), proxy=False, pseudonym=b"p").host == b""


def test_only_options_is_about_no_resource() -> None:
    assert head(method="OPTIONS", raw_path=b"*", extensions={"otelctx.target": b"*"}).target == b"*"
    for method in ("GET", "POST", "options"):
        with pytest.raises(MalformedRequest):
            head(method=method, raw_path=b"*")


@pytest.mark.parametrize(
    "target",
    [b"/..", b"/../x", b"/a/../b", b"/%2e%2E/x", b"/.%2e", b"/a%2f..%2Fb", b"/a\\..\\b", b"/..;x/b", b"/..?q"],
)
def test_no_target_leads_out_of_an_upstreams_own_path(target: bytes) -> None:
    """However the upstream takes ``..``: as a name, or as the way up to what belongs to others."""
    with pytest.raises(MalformedRequest):
        below(b"/team", target)
    assert below(b"", target) == target


@pytest.mark.parametrize("target", [b"/", b"/...", b"/a..b", b"/..a/b", b"/.", b"/x?a=/../b", b"/.%2f.x"])
def test_what_only_looks_like_the_way_up_is_a_name(target: bytes) -> None:
    assert below(b"/team", target) == b"/team" + target


def test_what_is_about_no_resource_is_about_the_upstreams_own_path() -> None:
    assert below(b"/team", b"*") == b"/team"
    assert below(b"", b"*") == b"*"


def test_bounds_are_exact() -> None:
    limits = Limits(lines=2, head=20, target=5, body=9)
    old = {"http_version": "1.0"}  # which need not name a host
    ok = scope((b"x", b"1" * 9), (b"y", b"2" * 9), raw_path=b"/1234", **old)
    assert read(ok, limits, proxy=False, pseudonym=b"p").target == b"/1234"
    for wrong, status in (
        (scope((b"x", b"1" * 9), (b"y", b"2" * 10), **old), 431),
        (scope(*[(b"x", b"")] * 3, **old), 431),
        (scope(raw_path=b"/12345", **old), 400),
        (scope((b"content-length", b"10"), **old), 413),
        (scope((b"content-length", b"1" * 5), **old), 413),
    ):
        with pytest.raises(OtelctxError) as caught:
            read(wrong, limits, proxy=False, pseudonym=b"p")
        assert caught.value.status == status
