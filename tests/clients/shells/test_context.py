"""Every client against real servers: which context goes out and what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from opentelemetry import baggage
from opentelemetry import context as otel_context

from otelctx.context.current import USAGE_OUTPUT, ContextKey, session
from otelctx.context.scope import Scope
from otelctx.context.state import Window
from otelctx.exchange.node import Node

TIER = ContextKey("clients.tier", str, visibility="public")
PROMPT = ContextKey("clients.prompt", str)


def test_three_full_then_a_ref_then_a_delta(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope, seen: Any
) -> None:
    client = driver.client(node())
    PROMPT.set("x" * 200)
    TIER.set("gold")
    for _ in range(4):
        driver.post(client, worker.url, json={"a": 1})
    TIER.set("silver")
    driver.post(client, worker.url, json={"a": 1})
    assert worker.kinds() == ["full", "full", "full", "ref", "delta"]
    assert worker.seen[-1].scope.state["clients.tier"] == "silver"
    assert worker.seen[-1].scope.state["session.id"] == "chat-42"
    assert [span.attributes["otelctx.frame.kind"] for span in seen.spans()] == worker.kinds()
    assert {span.attributes["session.id"] for span in seen.spans()} == {"chat-42"}


def test_the_body_and_the_other_headers_arrive_as_they_were(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    headers = [("X-Own", "1"), ("Otelctx", ":AAAA:"), ("OTELCTX-Ack", "x"), ("OtelCtx-Other", "y")]
    driver.post(driver.client(node()), worker.url, content=b"hello", headers=headers)
    (request,) = worker.seen
    assert (request.body, request.values("x-own"), request.values("content-length")) == (b"hello", ["1"], ["5"])
    assert request.exchange.outcome == "accepted"
    assert [name for name, _ in request.headers if name.startswith(b"otelctx")] == [b"otelctx"]


def test_usage_and_window_come_back_with_the_head(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    def handler(request: Any) -> None:
        request.scope.record(USAGE_OUTPUT.spec, 21)
        request.scope.report(Window(used=5, limit=8, version=len(worker.seen)))

    worker.handler = handler
    client = driver.client(node())
    for _ in range(2):
        driver.post(client, worker.url)
    assert USAGE_OUTPUT.get() == 42
    assert chat.window == Window(used=5, limit=8, version=2)


def test_usage_comes_up_two_hops_in_a_reply_that_is_no_stream(
    driver: Any, serve: Callable[..., Any], node: Callable[..., Node], chat: Scope
) -> None:
    """The service in the middle knows its callee's usage before its own head goes out."""
    front, back = serve(), serve()
    back.handler = lambda request: request.scope.record(USAGE_OUTPUT.spec, 100)

    import httpx

    from otelctx.clients.httpx import instrument

    async def middle(request: Any) -> None:
        async with httpx.AsyncClient(trust_env=False) as inner:
            await instrument(inner, node=front.node).post(back.url)
        request.scope.record(USAGE_OUTPUT.spec, 1)

    front.handler = middle
    client = driver.client(node())
    for _ in range(2):
        driver.post(client, front.url)
    assert USAGE_OUTPUT.get() == 202
    assert [request.scope.state["session.id"] for request in back.seen] == ["chat-42", "chat-42"]


def test_usage_of_a_stream_comes_with_the_sessions_next_ack(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    def handler(request: Any) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"a"
            request.scope.record(USAGE_OUTPUT.spec, 64)
            yield b"b"

        if len(worker.seen) == 1:
            request.chunks = chunks()

    worker.handler = handler
    client = driver.client(node())
    driver.post(client, worker.url)
    assert USAGE_OUTPUT.get() == 0
    driver.post(client, worker.url)
    assert USAGE_OUTPUT.get() == 64


def test_a_restarted_server_gets_it_in_full_and_runs_the_app_once(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope, seen: Any
) -> None:
    client = driver.client(node())
    for _ in range(4):
        driver.post(client, worker.url, json={"a": 1})
    worker.node = node()
    worker.seen.clear()
    seen.exporter.clear()
    response = driver.post(client, worker.url, json={"a": 1})
    assert (response.status, response.content, worker.refused) == (200, b"ok", 1)
    assert (worker.kinds(), json.loads(worker.seen[0].body)) == (["full"], {"a": 1})
    refused, repeated = seen.spans()
    assert refused.attributes["otelctx.resync"] is True
    assert "error.type" not in refused.attributes
    assert refused.status.is_unset
    assert (repeated.attributes["http.request.resend_count"], repeated.attributes["otelctx.frame.kind"]) == (1, "full")
    assert "otelctx.resync" not in repeated.attributes
    assert [d["http.response.status_code"] for d in seen.durations() if "error.type" in d] == []
    driver.post(client, worker.url, json={"a": 1})
    assert worker.kinds() == ["full", "ref"]


def test_a_body_that_can_be_read_once_goes_with_a_full_and_is_never_refused(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    client = driver.client(node())
    for _ in range(3):
        driver.post(client, worker.url)
    worker.node = node()
    response = driver.post(client, worker.url, content=driver.body([b"a", b"b"]))
    assert (response.status, worker.refused) == (200, 0)
    assert (worker.seen[-1].body, worker.kinds()[-1]) == (b"ab", "full")


def test_a_412_of_the_applications_own_is_not_repeated(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    client = driver.client(node())
    for _ in range(3):
        driver.post(client, worker.url)

    def handler(request: Any) -> None:
        request.status = 412

    worker.handler = handler
    response = driver.post(client, worker.url, headers=[("If-Match", "x")])
    assert (response.status, len(worker.seen), worker.kinds()[-1]) == (412, 4, "ref")


def test_an_openai_client_that_retries_sends_it_in_full(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope, seen: Any
) -> None:
    client = driver.client(node())
    for _ in range(4):
        driver.post(client, worker.url)
    driver.post(client, worker.url, headers=[("x-stainless-retry-count", "2")])
    assert worker.kinds()[3:] == ["ref", "full"]
    assert seen.spans()[-1].attributes["http.request.resend_count"] == 2


def test_concurrent_first_requests_all_send_full(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    """Nobody waits for an ack: none is given here before all six have been sent."""
    arrived = asyncio.Barrier(6)

    async def hold(request: Any) -> None:
        await arrived.wait()

    worker.handler = hold
    client = driver.client(node())
    assert driver.together(client, worker.url, 6) == [200] * 6
    assert worker.kinds() == ["full"] * 6
    assert {request.exchange.outcome for request in worker.seen} == {"accepted"}


def test_an_unaware_server_is_served_as_before(
    driver: Any, serve: Callable[..., Any], node: Callable[..., Node], chat: Scope
) -> None:
    plain = serve(aware=False)
    client = driver.client(node())
    TIER.set("gold")
    for _ in range(5):
        assert driver.post(client, plain.url).content == b"ok"
    assert {len(request.values("otelctx")) for request in plain.seen} == {1}
    assert plain.seen[-1].values("baggage") == ["clients.tier=gold"]


def test_a_stranger_gets_trace_context_alone_whichever_proxy_stands_between(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope, seen: Any
) -> None:
    """The proxy is on loopback, where context may go; what counts is where the request goes."""
    TIER.set("gold")
    client = driver.client(node(), proxy=worker.url)
    token = otel_context.attach(baggage.set_baggage("theirs", "1"))
    token2 = otel_context.attach(baggage.set_baggage("clients.tier", "gold"))
    try:
        assert driver.post(client, "http://api.example.com/v1").status == 200
    finally:
        otel_context.detach(token2)
        otel_context.detach(token)
    (request,) = worker.seen
    assert (request.values("otelctx"), request.values("baggage")) == ([], ["theirs=1"])
    trace_id = format(seen.span().context.trace_id, "032x")
    assert request.values("traceparent")[0].split("-")[1:3] == [trace_id, format(seen.span().context.span_id, "016x")]
    assert (seen.span().attributes["server.address"], seen.span().attributes["server.port"]) == ("api.example.com", 80)


def test_a_friend_behind_a_proxy_gets_the_frame(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    client = driver.client(node(), proxy=worker.url)
    for _ in range(4):
        driver.post(client, "http://model.internal/v1")
    assert worker.kinds() == ["full", "full", "full", "ref"]


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_to_another_origin_takes_nothing_of_ours_along(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope, seen: Any, status: int
) -> None:
    """The redirected request is made from the headers of the first: a frame written into those would go with it."""
    TIER.set("gold")

    def handler(request: Any) -> None:
        if request.values("host") == ["first.internal"]:
            request.status = status
            request.response_headers.append((b"location", b"http://elsewhere.example.com/"))

    worker.handler = handler
    client = driver.client(node(), proxy=worker.url)
    response = driver.post(client, "http://first.internal/", content=b"x", headers=[("Baggage", "own=1")], follow=True)
    first, other = worker.seen
    assert (response.status, other.method) == (200, "GET" if status == 302 else "POST")
    assert (first.exchange.outcome, first.values("baggage")) == ("accepted", ["own=1,clients.tier=gold"])
    assert [name for name, _ in other.headers if name.startswith(b"otelctx")] == []
    assert other.values("baggage") == ["own=1"]
    assert len(other.values("traceparent")) == 1
    one, two = seen.spans()
    assert (one.attributes["http.response.status_code"], two.attributes["http.request.resend_count"]) == (status, 1)
    assert two.attributes["server.address"] == "elsewhere.example.com"
    assert one.context.span_id != two.context.span_id
    assert len(seen.durations()) == 2


def test_a_redirect_within_an_origin_is_another_attempt_and_full(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope, seen: Any
) -> None:
    client = driver.client(node())
    for _ in range(3):
        driver.post(client, worker.url)

    def handler(request: Any) -> None:
        if request.path == "/from":
            request.status = 307
            request.response_headers.append((b"location", b"/to"))

    worker.handler = handler
    assert driver.post(client, worker.url + "/from", json={"a": 1}, follow=True).status == 200
    assert [(r.path, json.loads(r.body)) for r in worker.seen[3:]] == [("/from", {"a": 1}), ("/to", {"a": 1})]
    assert worker.kinds()[3:] == ["ref", "full"]
    assert seen.spans()[-1].attributes["http.request.resend_count"] == 1
    driver.post(client, worker.url + "/to")
    assert worker.kinds()[-1] == "ref"


def test_what_has_been_sent_again_is_counted_through_a_redirect(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope, seen: Any
) -> None:
    client = driver.client(node())
    for _ in range(3):
        driver.post(client, worker.url)

    def handler(request: Any) -> None:
        if request.path == "/from":
            request.status = 307
            request.response_headers.append((b"location", b"/to"))

    worker.node, worker.handler = node(), handler
    driver.post(client, worker.url + "/from", follow=True)
    spans = [span.attributes for span in seen.spans()[3:]]
    statuses = [(a["http.response.status_code"], a.get("http.request.resend_count")) for a in spans]
    assert statuses == [(412, None), (307, 1), (200, 2)]


@pytest.mark.parametrize("status", [431, 494])
@pytest.mark.parametrize("once", [False, True])
def test_headers_that_are_too_large_are_left_out_once(
    driver: Any, serve: Callable[..., Any], node: Callable[..., Node], chat: Scope, seen: Any, status: int, once: bool
) -> None:
    """Unless the body can't be sent a second time: then the answer is the application's."""
    server = serve(aware=False)

    def handler(request: Any) -> None:
        if request.values("otelctx"):
            request.status = status

    server.handler = handler
    client = driver.client(node())
    TIER.set("gold")
    content = driver.body([b"a", b"b"]) if once else b"ab"
    assert driver.post(client, server.url, content=content).status == (status if once else 200)
    assert [len(request.values("otelctx")) for request in server.seen] == ([1] if once else [1, 0])
    assert driver.post(client, server.url).status == 200
    assert [len(request.values("otelctx")) for request in server.seen][-1] == 0
    if not once:
        assert [request.body for request in server.seen[:2]] == [b"ab", b"ab"]
        assert seen.spans()[1].attributes["http.request.resend_count"] == 1


def test_a_get_is_full_until_its_path_has_acked_one(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    """An ack on a GET that a cache may keep is none, so a service says that it may not."""
    worker.handler = lambda request: request.response_headers.append((b"cache-control", b"no-store"))
    client = driver.client(node())
    for _ in range(3):
        driver.post(client, worker.url + "/chat")
    for _ in range(2):
        driver.request(client, "GET", worker.url + "/models")
    assert worker.kinds()[3:] == ["full", "ref"]


def test_a_body_of_more_than_64_kib_goes_with_a_full(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    client = driver.client(node())
    for _ in range(3):
        driver.post(client, worker.url)
    for size in (65536, 65537):
        driver.post(client, worker.url, content=b"x" * size)
    driver.post(client, worker.url, json={"a": "x" * 65536})
    assert worker.kinds()[3:] == ["ref", "full", "full"]
    assert [len(request.body) for request in worker.seen[3:5]] == [65536, 65537]


def test_one_baggage_header_with_the_applications_members_kept(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    TIER.set("a b")
    token = otel_context.attach(baggage.set_baggage("ctx", "1"))
    try:
        driver.post(driver.client(node()), worker.url, headers=[("Baggage", "own=2;p=x")])
    finally:
        otel_context.detach(token)
    assert worker.seen[0].values("baggage") == ["own=2;p=x,ctx=1,clients.tier=a%20b"]


def test_trace_headers_of_the_callers_own_are_replaced(
    driver: Any, worker: Any, node: Callable[..., Node], seen: Any
) -> None:
    """Two of them would be read as none, or as the wrong one."""
    driver.post(driver.client(node()), worker.url, headers=[("TraceParent", f"00-{1:032x}-{1:016x}-01")])
    (line,) = worker.seen[0].values("traceparent")
    assert line.split("-")[2] == format(seen.span().context.span_id, "016x")


def test_a_propagator_that_raises_costs_nothing(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope, propagator: Callable[[Any], None]
) -> None:
    class Broken:
        def inject(self, *args: Any, **options: Any) -> None:
            raise RuntimeError("somebody else's")

    propagator(Broken())
    assert driver.post(driver.client(node()), worker.url).status == 200
    assert worker.kinds() == ["full"]
    assert worker.seen[0].values("traceparent") == []


def test_it_works_without_any_session(driver: Any, worker: Any, node: Callable[..., Node]) -> None:
    driver.post(driver.client(node()), worker.url)
    assert (worker.seen[0].values("otelctx"), len(worker.seen[0].values("traceparent"))) == ([], 1)


def test_the_ack_is_joined_into_the_callers_scope_only(
    driver: Any, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    worker.handler = lambda request: request.scope.record(USAGE_OUTPUT.spec, 7)
    client = driver.client(node())
    with session("inner"):
        driver.post(client, worker.url)
        assert USAGE_OUTPUT.get() == 7
    assert USAGE_OUTPUT.get() == 7  # the inner session has ended into this one
    with session("other"):
        assert USAGE_OUTPUT.get() == 0
