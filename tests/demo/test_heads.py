"""Heads read off a connection, however its bytes arrive."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from otelctx.demo.heads import HeadReader

REQUESTS = (
    b"POST /a HTTP/1.1\r\nHost: x\r\nOtelctx: :QQ==:\r\nContent-Length: 5\r\n\r\nhello"
    b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n"
    b"POST /c HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3;x=y\r\nabc\r\n10\r\n0123456789\r\n\r\nab\r\n0\r\nT: v\r\n\r\n"
    b"GET /d HTTP/1.1\r\n\r\n"
)
RESPONSES = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 204 No Content\r\ncontent-length: 7\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\r\n\r\n0\r\n\r\n"
    b"HTTP/1.1 304 Not Modified\r\n\r\n"
)


def read(data: bytes, cuts: list[int]) -> list[bytes]:
    reader = HeadReader()
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    found = []
    for start, end in itertools.pairwise(edges):
        found += [head.start for head in reader.feed(data[start:end])]
    assert reader.total == len(data)
    return found


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_requests_are_found_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    expected = [b"POST /a HTTP/1.1", b"GET /b HTTP/1.1", b"POST /c HTTP/1.1", b"GET /d HTTP/1.1"]
    assert read(REQUESTS, cuts) == expected


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_answers_are_found_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    assert [start[9:12] for start in read(RESPONSES, cuts)] == [b"200", b"100", b"204", b"200", b"304"]


def test_a_line_is_counted_as_it_stands_on_the_wire() -> None:
    (head,) = HeadReader().feed(b"GET / HTTP/1.1\r\nOtelctx: :QQ==:\r\nOTELCTX: x\r\n\r\n")
    assert head.size(b"otelctx") == len("Otelctx: :QQ==:\r\nOTELCTX: x\r\n")
    assert head.value(b"otelctx") == b"x"
    assert head.values(b"otelctx-ack") == []
