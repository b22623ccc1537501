"""Every client against real servers: what is sent again, by us and by the library, and with which context."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.context.current import ContextKey
from otelctx.context.scope import Scope
from otelctx.exchange.node import Node

TIER = ContextKey("clients.again.tier", str, visibility="public")
PROMPT = ContextKey("clients.again.prompt", str)


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
    assert (first.exchange.outcome, first.values("baggage")) == ("accepted", ["own=1,clients.again.tier=gold"])
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
