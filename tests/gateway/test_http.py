"""Requests through a real gateway to a real worker: what goes through unchanged, and what does not go through."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from otelctx.gateway.options import Options

GET = b"GET %s HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "target",
    [b"/", b"//a//b", b"/a%2fb%2F..%00", b"/a/../b", b"/a;b=c?d=%zz&&=?/", b"/x?", b"/%C3%A9?q=%22'\"<>|^`{}", b"/*"],
)
def test_the_request_target_gets_through_byte_for_byte(shared: Any, workers: Any, target: bytes) -> None:
    raw: list[bytes] = []

    async def keep(request: Any) -> None:
        raw.append(request.scope["raw_path"] + b"?" + request.scope["query_string"])
        await request.answer()

    workers[0].handler = keep
    assert shared.talk(GET % target).startswith(b"HTTP/1.1 200 ")
    path, _, query = target.partition(b"?")
    assert raw == [path + b"?" + query]


def test_of_an_absolute_target_the_path_is_used(shared: Any, workers: Any) -> None:
    assert b" 200 " in shared.talk(GET % b"http://elsewhere.example/a?b")
    (request,) = workers[0].seen
    assert request.target == b"/a?b"
    assert request.values("host") == [workers[0].url.removeprefix("http://")]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY", "REPORT"])
def test_every_method_gets_through_with_its_body(client: Any, shared: Any, workers: Any, method: str) -> None:
    async def echo(request: Any) -> None:
        await request.answer(request.scope["method"].encode() + b" " + await request.read())

    workers[0].handler = echo
    answer = client.request(method, shared.url, content=b"body" * 9)
    assert (answer.status_code, answer.text) == (200, f"{method} " + "body" * 9)


def test_a_head_response_keeps_its_length_and_has_no_body(client: Any, shared: Any, workers: Any) -> None:
    async def head(request: Any) -> None:
        await request.start(200, [(b"content-length", b"1234"), (b"etag", b'"x"')])
        await request.write(b"", last=True)

    workers[0].handler = head
    for _ in range(3):  # on the same connections
        answer = client.head(shared.url)
        assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "1234", b"")


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_content_gets_through(client: Any, shared: Any, workers: Any, status: int) -> None:
    async def bare(request: Any) -> None:
        await request.start(status, [(b"etag", b'"x"')])
        await request.write(b"", last=True)

    workers[0].handler = bare
    for _ in range(3):
        answer = client.get(shared.url)
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (status, b"", '"x"')
        assert "content-length" not in answer.headers


@pytest.mark.parametrize("status", [201, 206, 302, 400, 404, 418, 429, 500, 502, 599])
def test_any_other_status_gets_through_with_headers_and_body(
    client: Any, shared: Any, workers: Any, status: int
) -> None:
    async def answer_with(request: Any) -> None:
        await request.answer(b"b", status, [(b"x-one", b"1"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=\xff")])

    workers[0].handler = answer_with
    answer = client.get(shared.url)
    assert (answer.status_code, answer.content, answer.headers["x-one"]) == (status, b"b", "1")
    assert [v for n, v in answer.headers.raw if n == b"set-cookie"] == [b"a=1", b"b=\xff"]


def test_header_bytes_above_ascii_get_through(shared: Any, workers: Any) -> None:
    shared.talk(b"GET / HTTP/1.1\r\nhost: edge\r\nx-name: \xc3\xa9\xff\tx\r\nconnection: close\r\n\r\n")
    assert workers[0].seen[0].values("x-name") == ["Ã©ÿ\tx"]


def test_a_body_is_awaited_only_when_somebody_takes_it(shared: Any, workers: Any) -> None:
    """Expect: 100-continue: the client hears Continue, the worker never sees the expectation."""
    head = b"POST / HTTP/1.1\r\nhost: edge\r\ncontent-length: 3\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
    got = shared.talk(head + b"abc")
    assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    assert (workers[0].seen[0].body, workers[0].seen[0].values("expect")) == (b"abc", [])


def test_a_chunked_body_stays_chunked_and_its_trailers_end_here(shared: Any, workers: Any) -> None:
    head = b"POST / HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: chunked\r\ntrailer: x-t\r\nconnection: close\r\n\r\n"
    assert b" 200 " in shared.talk(head + b"3;ext=1\r\nabc\r\n4\r\ndefg\r\n0\r\nx-t: 1\r\n\r\n")
    (request,) = workers[0].seen
    assert request.body == b"abcdefg"
    assert request.values("transfer-encoding") == ["chunked"]
    assert not {n for n, _ in request.headers} & {b"trailer", b"x-t", b"content-length", b"te"}


def test_a_body_is_decoded_by_nobody(client: Any, shared: Any, workers: Any) -> None:
    async def squeezed(request: Any) -> None:
        await request.answer(b"\x1f\x8bnot really", headers=[(b"content-encoding", b"gzip")])

    workers[0].handler = squeezed
    with client.stream("GET", shared.url) as answer:
        assert (answer.headers["content-encoding"], b"".join(answer.iter_raw())) == ("gzip", b"\x1f\x8bnot really")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"content-length: 3\r\ntransfer-encoding: chunked\r\n", 400),
        (b"content-length: 3\r\ncontent-length: 3\r\n", 400),
        (b"content-length: 3, 3\r\n", 400),
        (b"content-length: +3\r\n", 400),
        (b"content-length: 3\r\ncontent-length: 5\r\n", 400),
        (b"transfer-encoding: identity\r\n", 400),
        (b"transfer-encoding: gzip, chunked\r\n", 501),
        (b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", 400),
        (b"transfer-encoding : chunked\r\n", 400),
        (b"transfer-encoding: \x0bchunked\r\n", 400),
        (b"x: a\r\n b\r\n", 400),
        (b"x: a\x00b\r\n", 400),
        (b"x: a\rb: c\r\n", 400),
        (b"x: a\nb: c\r\n", 400),
        (b"x y: a\r\n", 400),
        (b": a\r\n", 400),
        (b"host: other\r\n", 400),
        (b"authorization: a\r\nauthorization: b\r\n", 400),
        (b"expect: the-unexpected\r\n", 417),
    ],
)
def test_what_two_parties_could_read_in_two_ways_is_refused(
    shared: Any, workers: Any, head: bytes, status: int
) -> None:
    """RFC 9112 §11.2: the worker must see no request that this gateway has not seen as one."""
    framed = b"content-length" in head or b"transfer-encoding" in head
    smuggled = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n" if framed else b""
    got = shared.talk(b"POST /one HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n" + head + b"\r\n" + smuggled)
    assert got.startswith(b"HTTP/1.1 %d " % status)
    assert got.count(b"HTTP/1.1 ") == 1
    assert workers[0].seen == []


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"TRACE / HTTP/1.1", 405),
        (b"CONNECT edge:443 HTTP/1.1", 400),
        (b"GET /#fragment HTTP/1.1", 400),
        (b"GET /\xc3\xa9 HTTP/1.1", 400),
        (b"GET / HTTP/9.9", 400),
        (b"G\xc3T / HTTP/1.1", 400),
        (b"GET / HTTP/1.1\r\nhost: a/b", 400),
        (b"GET / HTTP/1.1\r\nhost: a b", 400),
        (b"GET / HTTP/1.1\r\nhost: user@a", 400),
    ],
)
def test_a_request_line_that_is_none_is_refused(shared: Any, workers: Any, line: bytes, status: int) -> None:
    host = b"" if b"host" in line else b"host: edge\r\n"
    got = shared.talk(line + b"\r\n" + host + b"connection: close\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 %d " % status)
    assert workers[0].seen == []


def test_headers_over_the_bounds_are_431_in_the_apis_shape(client: Any, shared: Any, workers: Any) -> None:
    for headers in ({f"x-{n}": "1" for n in range(200)}, {"x": "y" * 70_000}):
        answer = client.get(shared.url, headers=headers)
        assert answer.status_code == 431
        assert answer.json()["error"]["code"] == "header_fields_too_large"
    assert workers[0].seen == []


def test_a_head_that_does_not_end_is_cut_off(shared: Any, workers: Any) -> None:
    got = shared.talk(b"GET / HTTP/1.1\r\nhost: edge\r\nx: " + b"y" * 400_000)
    assert got == b"" or got.startswith(b"HTTP/1.1 431 ")  # or reset, for the bytes that nobody has read
    assert workers[0].seen == []


def test_a_body_over_the_bound_is_413_by_its_length_or_on_the_way(client: Any, edge: Any, workers: Any) -> None:
    from otelctx.gateway.head import Limits

    running = edge([workers[0].url], options=Options(limits=Limits(body=1000)))
    assert client.post(running.url, content=b"x" * 1001).status_code == 413
    assert workers[0].seen == []
    answer = client.post(running.url, content=iter([b"x" * 600] * 2))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert client.post(running.url, content=b"x" * 1000).status_code == 200


def test_a_loop_is_seen_and_ended(client: Any, edge: Any, workers: Any) -> None:
    running = edge([workers[0].url])
    running.gateway.upstreams.replace([running.url])
    answer = client.get(running.url)
    assert (answer.status_code, answer.json()["error"]["code"]) == (508, "loop_detected")


def test_without_an_upstream_there_is_503_in_the_apis_shape(client: Any, edge: Any, refused: str) -> None:
    running = edge([refused], options=Options(health_path=""))
    answer = client.post(running.url, content=b"{}")
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (502, "server_error", "upstream_unreachable")
    answer = client.post(running.url, content=b"{}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_upstream")
    assert int(answer.headers["retry-after"]) >= 1
    ready = client.get(running.url + "/readyz")
    assert (ready.status_code, ready.json()) == (503, {"status": "no upstream"})
    assert client.get(running.url + "/healthz").json() == {"status": "ok"}


def test_without_an_upstream_nobody_is_asked_for_a_body(edge: Any, refused: str, eventually: Any) -> None:
    """A client that waits for Continue keeps what would be thrown away."""
    running = edge([refused])
    eventually(lambda: not running.gateway.upstreams.ready)
    head = b"POST / HTTP/1.1\r\nhost: e\r\ncontent-length: 9\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
    assert running.talk(head, until=b"\r\n\r\n").startswith(b"HTTP/1.1 503 ")


def test_http_1_0_gets_an_answer_and_an_end(shared: Any, workers: Any) -> None:
    got = shared.talk(b"GET / HTTP/1.0\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200 ")
    assert got.endswith(b"ok")


def test_requests_on_one_connection_do_not_mix(shared: Any, workers: Any) -> None:
    async def echo(request: Any) -> None:
        await request.answer(await request.read())

    workers[0].handler = echo
    pipelined = b"".join(b"POST /%d HTTP/1.1\r\nhost: e\r\ncontent-length: 1\r\n\r\n%d" % (n, n) for n in range(9))
    got = shared.talk(pipelined + GET % b"/end")
    assert [part.rpartition(b"\r\n\r\n")[2] for part in got.split(b"HTTP/1.1 200 OK\r\n")[1:]] == [
        *(b"%d" % n for n in range(9)),
        b"",
    ]


def test_the_host_of_the_request_is_told_and_not_used(client: Any, shared: Any, workers: Any) -> None:
    client.get(shared.url, headers={"host": "public.example:99"})
    request = workers[0].seen[0]
    assert request.values("host") == [workers[0].url.removeprefix("http://")]
    assert request.values("x-forwarded-host") == ["public.example:99"]
    assert (request.values("x-forwarded-proto"), request.values("x-forwarded-for")) == (["http"], ["127.0.0.1"])


def test_a_path_of_the_upstream_stands_before_the_target(client: Any, edge: Any, workers: Any) -> None:
    running = edge([workers[0].url + "/base/"])
    client.get(running.url + "/v1/models?x=1")
    assert workers[0].seen[0].target == b"/base/v1/models?x=1"
    assert running.talk(GET % b"/../other").startswith(b"HTTP/1.1 400 ")
    assert len(workers[0].seen) == 1


def test_errors_are_json_that_names_no_address(client: Any, edge: Any, refused: str) -> None:
    text = client.get(edge([refused]).url).text
    assert refused.removeprefix("http://") not in text
    assert "message" in json.loads(text)["error"]


def test_the_client_library_of_openai_reads_the_errors(edge: Any, refused: str) -> None:
    openai = pytest.importorskip("openai")
    running = edge([refused])
    with (
        httpx.Client(trust_env=False, timeout=60) as http,
        openai.OpenAI(base_url=running.url + "/v1", api_key="k", http_client=http, max_retries=0) as made,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        made.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert caught.value.status_code in (502, 503)
