"""Responses, byte by byte."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.gateway.failures import (
    BadResponse,
    ConnectFailed,
    ConnectTimeout,
    UpstreamClosed,
    UpstreamFailure,
    UpstreamTimeout,
)
from otelctx.gateway.outbound import encode
from otelctx.gateway.parser import ResponseParser
from otelctx.gateway.retry import RetryBudget, may_retry

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nx-trailer: 1\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + LENGTH


def parse(*pieces: bytes, method: str = "GET") -> tuple[ResponseParser, bytes]:
    parser, body = ResponseParser(method), b""
    for piece in pieces:
        parser.feed(piece)
        if parser.size:
            body += parser.take()
    return parser, body


@pytest.mark.parametrize("whole", [LENGTH, CHUNKED, EARLY])
@given(cuts=st.lists(st.integers(0, 130), max_size=8))
def test_how_it_is_cut_does_not_matter(whole: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(c, len(whole)) for c in cuts), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(edges) if b > a]
    parser, body = parse(*pieces)
    assert (body, parser.complete, parser.reusable) == (b"hello", True, True)
    assert parser.head is not None
    assert (parser.head.status, parser.head.version) == (200, "1.1")
    assert b"link" not in dict(parser.head.headers)
    assert b"x-trailer" not in dict(parser.head.headers)


@pytest.mark.parametrize("whole", [LENGTH, CHUNKED])
def test_an_end_that_comes_too_early_is_told(whole: bytes) -> None:
    for cut in range(1, len(whole)):
        parser, _ = parse(whole[:cut])
        with pytest.raises(UpstreamClosed):
            parser.eof()


def test_without_a_length_the_body_ends_with_the_connection() -> None:
    parser, body = parse(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo")
    assert (body, parser.complete) == (b"hello", False)
    parser.eof()
    assert (parser.complete, parser.reusable) == (True, False)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_what_has_no_body_ends_with_its_head(method: str) -> None:
    status = b"200" if method == "HEAD" else b"304"
    parser, _ = parse(b"HTTP/1.1 " + status + b" OK\r\ncontent-length: 5\r\n\r\n", method=method)
    assert (parser.complete, parser.reusable) == (True, True)


@pytest.mark.parametrize("extra", [b"x", LENGTH, b"HTTP/1.1 2", b"\r\n", b"\0" * 9])
def test_after_bytes_too_many_a_connection_is_not_used_again(extra: bytes) -> None:
    for pieces in ((LENGTH + extra,), (LENGTH, extra)):
        parser, body = parse(*pieces)
        assert (body, parser.complete) == (b"hello", True)
        assert not parser.reusable or extra == b"\r\n"


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"gzip", b"identity", b"chunked\r\nTransfer-Encoding: gzip"])
def test_a_transfer_coding_that_nobody_asked_for_is_no_response(coding: bytes) -> None:
    """Undone by nobody, it would be taken for the content."""
    with pytest.raises(BadResponse):
        parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + coding + b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    parser, body = parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding:  Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    assert (body, parser.reusable) == (b"hello", True)


def test_a_worker_that_wants_to_close_is_let() -> None:
    for close in (b"HTTP/1.1 200 OK\r\nconnection: close\r\n", b"HTTP/1.0 200 OK\r\n"):
        parser, _ = parse(close + b"content-length: 0\r\n\r\n")
        assert (parser.complete, parser.reusable) == (True, False)


def test_heads_are_bounded_1xx_included() -> None:
    with pytest.raises(BadResponse):
        parse(b"HTTP/1.1 200 OK\r\nx: ", *[b"y" * 1000] * 100)
    with pytest.raises(BadResponse):
        parse(*[b"HTTP/1.1 100 Continue\r\n\r\n" * 100] * 100)


@given(
    st.lists(
        st.sampled_from([LENGTH, CHUNKED, EARLY, b"HTTP/1.1 ", b"\r\n", b"0\r\n", b"x: "]) | st.binary(max_size=30)
    )
)
def test_whatever_comes_nothing_but_a_failure_is_raised(pieces: list[bytes]) -> None:
    parser = ResponseParser("GET")
    try:
        for piece in pieces:
            parser.feed(piece)
            if parser.size:
                parser.take()
        parser.eof()
    except UpstreamFailure:
        return
    assert parser.complete


def test_a_line_break_in_a_header_is_never_written() -> None:
    assert encode("GET", b"/", [(b"a", b"b")]) == b"GET / HTTP/1.1\r\na: b\r\n\r\n"
    for name, value in ((b"a", b"b\r\nc: d"), (b"a", b"b\nc"), (b"a\r\n", b"b"), (b"a", b"\r")):
        with pytest.raises(BadResponse):
            encode("GET", b"/", [(name, value)])


CONNECT, SLOW, CUT, LATE, BAD = (
    kind("") for kind in (ConnectFailed, ConnectTimeout, UpstreamClosed, UpstreamTimeout, BadResponse)
)


@pytest.mark.parametrize(
    ("failure", "replayable", "idempotent", "again"),
    [
        (CONNECT, False, False, True), (SLOW, False, False, True),
        (503, True, False, True), (503, False, True, False),
        (CUT, True, True, True), (CUT, True, False, False), (CUT, False, True, False),
        (LATE, True, True, False), (BAD, True, True, False), (502, True, True, False), (429, True, True, False),
    ],
)  # fmt: skip
def test_what_may_be_sent_again(
    failure: UpstreamFailure | int, replayable: bool, idempotent: bool, again: bool
) -> None:
    assert may_retry(failure, replayable=replayable, idempotent=idempotent) is again


@given(st.lists(st.booleans(), max_size=300))
def test_retries_never_exceed_their_share_and_the_reserve(steps: list[bool]) -> None:
    budget, requests, retries = RetryBudget(0.2, 10), 0, 0
    for retry in steps:
        if retry:
            retries += budget.take()
        else:
            requests += 1
            budget.request()
        assert retries <= 10 + 0.2 * requests + 1e-9
