"""W3C context outside, frames inside, and nothing of ours at the public side."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from opentelemetry import trace

from otelctx import semconv
from otelctx.clients.dispatch import instrument
from otelctx.context.current import USAGE_OUTPUT, ContextKey, UpKey, current_scope, session
from otelctx.context.state import Window
from otelctx.exchange.node import Node
from otelctx.gateway.options import Options
from otelctx.settings import Settings

TIER = ContextKey("gateway.tests.tier", str)
PUBLIC = ContextKey("gateway.tests.public", str, visibility="public")
SPENT = UpKey("gateway.tests.spent", int, rule="sum")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNCHECKED = Options(health_path="")
SESSION = semconv.GATEWAY_SESSION_HEADER


@pytest.fixture
def inside(start_worker: Any, seen: Any) -> Any:
    """An aware worker, whose spans are seen."""
    return start_worker(aware=True, tracer_provider=seen.tracers, meter_provider=seen.meters)


@pytest.fixture
def traced(edge: Any, inside: Any, seen: Any) -> Any:
    return edge([inside.url], options=UNCHECKED, **seen.options)


def test_one_trace_from_the_client_through_both_processes(
    client: Any, traced: Any, inside: Any, seen: Any, eventually: Any
) -> None:
    async def app(request: Any) -> None:
        with trace.get_tracer("app", tracer_provider=seen.tracers).start_as_current_span("chat m"):
            await request.answer()

    inside.handler = app
    client.post(traced.url + "/v1/chat/completions", headers={"traceparent": TRACEPARENT}, content=b"{}")
    eventually(lambda: len(seen.spans()) == 4)
    (chat,), (outgoing,) = seen.spans("INTERNAL"), seen.spans("CLIENT")
    edge_span, worker = sorted(seen.spans("SERVER"), key=lambda span: int(span.start_time or 0))
    assert format(edge_span.parent.span_id, "016x") == "b7ad6b7169203331"
    for child, parent in ((outgoing, edge_span), (worker, outgoing), (chat, worker)):
        assert child.parent.span_id == parent.context.span_id
    assert {format(s.context.trace_id, "032x") for s in seen.spans()} == {"0af7651916cd43dd8448eb211c80319c"}
    assert edge_span.attributes["http.response.status_code"] == 200
    assert outgoing.attributes["url.full"] == inside.url + "/v1/chat/completions"


def test_the_trace_headers_of_the_client_are_not_passed_on_beside_ours(client: Any, traced: Any, inside: Any) -> None:
    client.post(traced.url, headers={"traceparent": TRACEPARENT, "tracestate": "a=1", "baggage": "k=v"})
    (request,) = inside.seen
    (parent,) = request.values("traceparent")
    assert parent.split("-")[1] == TRACEPARENT.split("-")[1]
    assert parent != TRACEPARENT
    assert (request.values("tracestate"), request.values("baggage")) == (["a=1"], ["k=v"])


def test_the_worker_sees_a_session_that_the_edge_has_minted(client: Any, traced: Any, inside: Any) -> None:
    sessions: list[str | None] = []

    async def app(request: Any) -> None:
        scope = current_scope()
        assert scope is not None
        sessions.append(scope.state.session_id)
        await request.answer()

    inside.handler = app
    first = client.post(traced.url)
    mine = first.headers[SESSION]
    again = client.post(traced.url, headers={SESSION: mine})
    assert sessions == [mine, mine]
    assert SESSION not in again.headers
    assert client.post(traced.url).headers[SESSION] != mine


def test_frames_become_compact_and_what_comes_back_is_on_the_span(
    client: Any, traced: Any, inside: Any, seen: Any
) -> None:
    async def app(request: Any) -> None:
        scope = current_scope()
        assert scope is not None
        scope.report(Window(12, 64, evicted=3, version=2))
        USAGE_OUTPUT.record(5)
        await request.answer()

    inside.handler = app
    mine = client.post(traced.url).headers[SESSION]
    for _ in range(4):
        client.post(traced.url, headers={SESSION: mine}, content=b"{}")
    kinds = [s.attributes[semconv.FRAME_KIND] for s in seen.spans("CLIENT")]
    assert kinds[0] == "full"
    assert kinds[-1] == "ref"
    (last,) = [s for s in seen.spans("SERVER") if s.parent is None][-1:]
    assert last.attributes[semconv.WINDOW_USED] == 12
    assert last.attributes[semconv.WINDOW_LIMIT] == 64
    assert last.attributes[semconv.USAGE_OUTPUT] == 5
    assert last.attributes["session.id"] == mine


def test_a_lost_base_is_made_good_within_the_request(client: Any, edge: Any, inside: Any, seen: Any) -> None:
    running = edge([inside.url], options=UNCHECKED, **seen.options)
    mine = client.post(running.url).headers[SESSION]
    for _ in range(4):
        client.post(running.url, headers={SESSION: mine}, content=b"{}")
    inside_node = Node(Settings(keys=running.gateway.node.settings.keys))
    inside.forget(inside_node)
    assert client.post(running.url, headers={SESSION: mine}, content=b"{}").text == "ok"
    resyncs = [s for s in seen.spans("CLIENT") if s.attributes.get(semconv.RESYNC)]
    assert [s.attributes["http.response.status_code"] for s in resyncs] == [412]
    assert len(inside.seen) == 6, "the application has seen each request once"


FORGED = {"otelctx": ":AAAA:", "otelctx-ack": ":AAAA:", "otelctx-timeout-ms": "1", "otelctx-anything": "x"}


@pytest.mark.parametrize("aware", [True, False])
def test_frames_from_strangers_end_at_the_edge(client: Any, edge: Any, start_worker: Any, aware: bool) -> None:
    worker = start_worker(aware=aware)

    async def app(request: Any) -> None:
        await request.answer(headers=[(b"otelctx-ack", b":AAAA:"), (b"otelctx-mark", b"x")])

    worker.handler = app
    raw: list[Any] = []
    running = edge([worker.url], options=UNCHECKED)
    answer = client.post(running.url, headers=FORGED)
    raw = [name for name, _ in worker.seen[0].headers if name.startswith(b"otelctx")]
    assert raw == ([] if aware else [b"otelctx"]), "one frame at most, and that is the gateway's own"
    assert not any(name.startswith("otelctx") for name in answer.headers)


def test_public_keys_in_a_strangers_baggage_are_not_believed(client: Any, traced: Any, inside: Any) -> None:
    values: list[str | None] = []

    async def app(request: Any) -> None:
        values.append(PUBLIC.get())
        await request.answer()

    inside.handler = app
    client.post(traced.url, headers={"baggage": "gateway.tests.public=evil,other=1"})
    assert values == [None]
    assert inside.seen[0].values("baggage") == ["other=1"]


@pytest.fixture
def own() -> Iterator[Any]:
    """A client that is one of us: it has the key."""
    with httpx.Client(trust_env=False, timeout=60) as plain:
        yield lambda keys: instrument(plain, node=Node(Settings(keys=keys)))


def test_a_client_with_the_key_is_a_hop_like_any_other(own: Any, traced: Any, inside: Any) -> None:
    got: list[Any] = []

    async def app(request: Any) -> None:
        scope = current_scope()
        assert scope is not None
        got.append((TIER.get(), scope.state.session_id))
        SPENT.record(7)
        await request.answer()

    inside.handler = app
    client = own(traced.gateway.node.settings.keys)
    with session("chat-1"), TIER.bound("gold"):
        for _ in range(5):
            answer = client.post(traced.url, content=b"{}")
            assert SESSION not in answer.headers
        assert SPENT.get() == 35
    assert got == [("gold", "chat-1")] * 5


def test_a_client_with_another_key_is_a_stranger(own: Any, traced: Any, inside: Any) -> None:
    got: list[Any] = []

    async def app(request: Any) -> None:
        scope = current_scope()
        assert scope is not None
        got.append((TIER.get(), scope.state.session_id))
        await request.answer()

    inside.handler = app
    client = own("7:" + "A" * 43 + "=")
    with session("chat-1"), TIER.bound("gold"):
        answer = client.post(traced.url, content=b"{}")
    assert got == [(None, answer.headers[SESSION])]


def test_an_unaware_worker_gets_trace_context_and_the_request(client: Any, edge: Any, workers: Any) -> None:
    running = edge([workers[0].url], options=UNCHECKED)
    answer = client.post(running.url, headers={"traceparent": TRACEPARENT}, content=b"x")
    assert (answer.status_code, workers[0].seen[0].body) == (200, b"x")
    assert workers[0].seen[0].values("traceparent")[0].split("-")[1] == TRACEPARENT.split("-")[1]


def test_an_upstream_outside_gets_no_context(client: Any, edge: Any, workers: Any) -> None:
    """Egress is denied by default, to an upstream too: only the trace goes out."""
    running = edge([workers[0].url], options=UNCHECKED)
    running.gateway.node.egress = SimpleNamespace(allows=lambda host, port=None: False)
    client.post(running.url)
    assert not any(name.startswith(b"otelctx") for name, _ in workers[0].seen[0].headers)


def test_an_error_of_the_worker_is_one_on_the_client_span(client: Any, traced: Any, inside: Any, seen: Any) -> None:
    async def fail(request: Any) -> None:
        await request.answer(b"no", 500)

    inside.handler = fail
    client.get(traced.url)
    (outgoing,) = seen.spans("CLIENT")
    assert (outgoing.attributes["error.type"], outgoing.status.status_code.name) == ("500", "ERROR")


def test_a_client_that_goes_is_no_error(traced: Any, inside: Any, seen: Any, eventually: Any) -> None:
    async def endless(request: Any) -> None:
        await request.start(200, [(b"content-type", b"text/event-stream")])
        await request.write(b"data: 1\n\n")
        while (await request.receive())["type"] != "http.disconnect":
            pass

    inside.handler = endless
    with httpx.Client(trust_env=False, timeout=60) as client, client.stream("POST", traced.url) as answer:
        next(answer.iter_raw())
    eventually(lambda: len(seen.spans()) == 3)
    for span in seen.spans():
        assert "error.type" not in span.attributes
        assert span.status.status_code.name == "UNSET"


def test_a_worker_that_can_not_be_reached_is_an_error_on_both_spans(
    client: Any, edge: Any, refused: str, seen: Any
) -> None:
    client.get(edge([refused], options=UNCHECKED, **seen.options).url)
    outgoing, edge_span = seen.spans()
    assert outgoing.attributes["error.type"] == edge_span.attributes["error.type"]
    assert outgoing.attributes["error.type"] == "otelctx.gateway.failures.ConnectFailed"


def test_a_strangers_deadline_ends_at_the_edge_and_a_hops_goes_on_shorter(
    client: Any, traced: Any, inside: Any
) -> None:
    lefts: list[float | None] = []

    async def app(request: Any) -> None:
        scope = current_scope()
        assert scope is not None
        lefts.append(None if scope.deadline is None else scope.deadline - monotonic())
        assert request.values("otelctx-timeout-ms") == []
        await request.answer()

    inside.handler = app
    client.post(traced.url, content=b"{}", headers={"otelctx-timeout-ms": "5000"})
    hop = instrument(client, node=Node(Settings(keys=traced.gateway.node.settings.keys)))
    with session("chat-1", timeout=1000.0):
        hop.post(traced.url, content=b"{}")
    stranger, trusted = lefts
    assert stranger is None
    assert trusted is not None
    assert 100 < trusted < 999.85, "rounded down at each of two hops, and a test takes 900 seconds at most"
