"""Every client against real servers: which context goes out and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

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
        async with httpx.AsyncClient(trust_env=False, timeout=60) as inner:
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
