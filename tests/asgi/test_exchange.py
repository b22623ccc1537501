"""Frames in, acks out: the middleware as a party to the protocol."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from opentelemetry import baggage, metrics, trace
from opentelemetry.trace import StatusCode

from otelctx.asgi.passing import EXCHANGE
from otelctx.context.current import ContextKey, UpKey, current_scope, session
from otelctx.context.state import Window
from otelctx.exchange import client
from otelctx.exchange.client import Verdict
from otelctx.exchange.node import Node
from otelctx.settings import Settings

KEYS = "1:" + base64.b64encode(b"k" * 32).decode()
TIER = ContextKey("asgi.exchange.tier", str)
PUBLIC = ContextKey("asgi.exchange.public", str, visibility="public")
SPENT = UpKey("asgi.exchange.spent", int, rule="sum")
NO_STORE = [(b"cache-control", b"no-store")]


def keyed(**settings: Any) -> Node:
    return Node(Settings(keys=KEYS, **settings))


class Caller:
    """A client of the protocol that sends through the rig. Time stands still."""

    def __init__(self, rig: Any, **settings: Any) -> None:
        self.rig = rig
        self.node = keyed(**settings)
        self.kinds: list[str | None] = []

    async def post(self, path: str = "/chat", method: str = "POST", body: bytes = b"{}", **extra: Any) -> Any:
        exchange = client.begin(
            self.node, scheme="http", host="127.0.0.1", port=80, method=method, path=path, body=2, now=0.0, unix=NOW
        )
        self.kinds.append(exchange.kind)
        response = await self.rig.request(method, path, dict(exchange.headers), body=body, **extra)
        acks = [v for n, v in response.messages[0].get("headers", ()) if n == b"otelctx-ack"]
        response.verdict = exchange.close(response.status, acks, 0.0, NOW)
        response.acks = acks
        return response


NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    from otelctx.asgi import answer, entry

    for module in (entry, answer):
        monkeypatch.setattr(module, "time", lambda: NOW)


@pytest.fixture
def global_meters(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Counters of events go to the global provider, as emitted from anywhere."""

    def use(r: Any) -> Any:
        monkeypatch.setattr(metrics, "get_meter_provider", lambda: r.meters)
        return r

    return use


async def test_the_callers_context_is_there_and_what_is_recorded_comes_back(rig: Any, ok: Any) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        here = current_scope()
        assert here is not None
        seen.append((TIER.get(), here.source, here.incomplete, here.state.session_id))
        assert not any(name.startswith(b"otelctx") for name, _ in scope["headers"])
        SPENT.record(7)
        here.report(Window(used=10, limit=100, generation=1, version=len(seen)))
        await ok(send)

    r = rig(app, node=keyed())
    caller = Caller(r)
    with session("chat-1") as scope, TIER.bound("gold"):
        for _ in range(5):
            await caller.post()
        assert SPENT.get() == 35
        assert scope.window is not None
        assert (scope.window.used, scope.window.version) == (10, 5)
    assert seen == [("gold", "frame", False, "chat-1")] * 5
    assert caller.kinds[0] == "full"
    assert caller.kinds[-1] == "ref", "the link has learned what is held here"
    span = r.spans[-1]
    assert span.attributes["session.id"] == "chat-1"
    assert span.attributes["otelctx.context.source"] == "frame"
    assert span.attributes["otelctx.frame.kind"] == "ref"


async def test_a_head_hours_after_its_request_is_acked_as_of_then(rig: Any, ok: Any, monkeypatch: Any) -> None:
    from otelctx.asgi import entry

    late = NOW + 7200.0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        monkeypatch.setattr(entry, "time", lambda: late)
        await ok(send)

    caller = Caller(rig(app, node=keyed()))
    with session("chat-1"):
        response = await caller.post()
    assert caller.node.read_ack(response.acks, late) is not None
    assert caller.node.read_ack(response.acks, NOW) is None


async def test_frames_and_acks_are_counted_by_kind_and_bytes(rig: Any, ok: Any) -> None:
    r = rig(lambda scope, receive, send: ok(send), node=keyed())
    caller = Caller(r)
    with session("chat-1"):
        response = await caller.post()
    counts = {
        (p.attributes["otelctx.frame.kind"], p.attributes["otelctx.frame.direction"]): p.value
        for p in r.points("otelctx.context.frames")
    }
    sizes = {p.attributes["otelctx.frame.direction"]: p.value for p in r.points("otelctx.context.frame.bytes")}
    assert counts == {("full", "received"): 1, ("ack", "sent"): 1}
    assert sizes["sent"] == len(response.acks[0])
    line = dict(r.last_scope["headers"])
    assert b"otelctx" not in line


@pytest.mark.parametrize("version", ["1.1", "2"])
async def test_an_unknown_base_is_refused_before_the_application_and_resent_in_full(
    rig: Any, ok: Any, global_meters: Any, version: str
) -> None:
    ran: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ran.append(TIER.get())
        await ok(send)

    r = global_meters(rig(app, node=keyed()))
    caller = Caller(r)
    with session("chat-1"), TIER.bound("gold"):
        for _ in range(4):
            await caller.post()
        assert caller.kinds[-1] == "ref"
        # The worker restarts: a new process holds no base.
        fresh = rig(app, node=keyed())
        caller.rig = global_meters(fresh)
        refused = await caller.post(http_version=version)
    assert (refused.status, refused.verdict) == (412, Verdict.RESEND)
    assert json.loads(refused.body)["error"]["code"] == "context_base_unknown"
    assert refused.headers.get("connection") is None, "the body was small enough to be read"
    assert ran == ["gold"] * 4
    span = fresh.span
    assert (span.attributes["otelctx.resync"], span.status.status_code) == (True, StatusCode.UNSET)
    assert [e.name for e in span.events] == ["otelctx.context.resync"]
    assert "error.type" not in fresh.point()
    assert [p.value for p in fresh.points("otelctx.context.resyncs")] == [1]


@pytest.mark.parametrize(
    ("headers", "closed"),
    [
        ({"content-length": "2"}, False),
        ({}, False),
        ({"content-length": "65537"}, True),
        ({"content-length": "x"}, True),
        ({"transfer-encoding": "chunked"}, True),
        ({"content-length": "2", "expect": "100-continue"}, True),
    ],
)
async def test_a_refusal_closes_the_connection_unless_the_body_was_read(
    rig: Any, ok: Any, headers: dict[str, str], closed: bool
) -> None:
    reads: list[int] = []

    async def receive() -> Any:
        reads.append(1)
        return {"type": "http.request", "body": b"{}", "more_body": len(reads) < 2}

    node = keyed()
    warm = rig(lambda scope, receive, send: ok(send), node=node)
    caller = Caller(warm)
    with session("chat-1"):
        for _ in range(4):
            await caller.post()
        exchange = client.begin(
            caller.node, scheme="http", host="127.0.0.1", port=80, method="POST", path="/chat", body=2, now=0, unix=NOW
        )
    cold = rig(lambda scope, receive, send: ok(send), node=keyed())
    response = await cold.request("POST", "/chat", {**dict(exchange.headers), **headers}, receive=receive)
    assert response.status == 412
    assert (response.headers.get("connection") == "close") is closed
    assert len(reads) == (0 if closed else 2)
    http2 = await cold.request(
        "POST", "/chat", {**dict(exchange.headers), **headers}, receive=receive, http_version="2"
    )
    assert "connection" not in http2.headers, "it means nothing there"


async def test_told_to_proceed_the_application_runs_flagged(rig: Any, ok: Any, global_meters: Any) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        here = current_scope()
        assert here is not None
        seen.append((TIER.get(), here.source, here.incomplete))
        await ok(send)

    caller = Caller(rig(app, node=keyed()))
    with session("chat-1"), TIER.bound("gold"):
        for _ in range(4):
            await caller.post()
        cold = global_meters(rig(app, node=keyed(on_unknown_base="proceed")))
        caller.rig = cold
        response = await caller.post()
    assert (response.status, seen[-1]) == (200, (None, "none", True))
    assert cold.span.attributes["otelctx.context.incomplete"] is True
    assert [e.name for e in cold.span.events] == ["otelctx.context.proceeded"]
    assert response.acks, "a NACK on the application's own response"


async def test_a_strangers_frame_is_ignored_counted_and_not_answered(rig: Any, ok: Any, global_meters: Any) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((TIER.get(), trace.get_current_span().get_span_context().trace_id))
        await ok(send)

    r = global_meters(rig(app, node=keyed()))
    caller = Caller(r)
    caller.node = Node(Settings(keys="2:" + base64.b64encode(b"x" * 32).decode()))
    with session("chat-1"), TIER.bound("gold"):
        response = await caller.post()
    assert (response.status, response.acks, seen[0][0]) == (200, [], None)
    assert [e.name for e in r.span.events] == ["otelctx.context.rejected"]
    (point,) = r.points("otelctx.context.rejects")
    assert point.attributes.keys() == {"otelctx.reason"}
    assert r.span.attributes.get("otelctx.frame.kind") is None


async def test_the_applications_own_ack_header_is_replaced(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"OtelCtx-Ack", b":forged:"), (b"x", b"y")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    r = rig(app, node=keyed())
    bare = await r.request("POST", "/chat")
    assert bare.messages[0]["headers"] == [(b"x", b"y")]
    caller = Caller(r)
    with session("chat-1"):
        response = await caller.post()
    (ack,) = [v for n, v in response.messages[0]["headers"] if n.lower() == b"otelctx-ack"]
    assert ack != b":forged:"


@pytest.mark.parametrize(
    ("method", "private", "acked"), [("GET", False, False), ("GET", True, True), ("POST", False, True)]
)
async def test_no_ack_where_a_shared_cache_may_keep_it(rig: Any, method: str, private: bool, acked: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": NO_STORE if private else []})
        await send({"type": "http.response.body", "body": b""})

    caller = Caller(rig(app, node=keyed()))
    with session("chat-1"):
        response = await caller.post(method=method)
    assert bool(response.acks) is acked


async def test_a_frame_is_heard_on_an_excluded_path_too(rig: Any, ok: Any) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(TIER.get())
        await ok(send)

    r = rig(app, node=keyed(), excluded="/chat")
    caller = Caller(r)
    with session("chat-1"), TIER.bound("gold"):
        response = await caller.post()
    assert (seen, bool(response.acks), r.spans) == (["gold"], True, [])


@pytest.mark.parametrize("dot", [".", "%2E"])
async def test_our_baggage_becomes_context_only_from_a_trusted_client_and_never_stays(
    rig: Any, ok: Any, dot: str
) -> None:
    """In another spelling of its name, which some propagators decode, it becomes nothing at all."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((PUBLIC.get(), dict(baggage.get_all()), dict(scope["headers"]).get(b"baggage")))
        await ok(send)

    line = {"baggage": f"asgi.exchange{dot}public=yes,theirs=kept;p=1"}
    await rig(app, node=Node(Settings())).request("POST", "/", line)
    await rig(app, node=Node(Settings(trusted_clients=("192.0.2.0/24",)))).request("POST", "/", line)
    assert [s[0] for s in seen] == [None, "yes" if dot == "." else None]
    for _, members, header in seen:
        assert "asgi.exchange.public" not in members
        assert "theirs" in members
        assert header == b"theirs=kept;p=1"


async def test_a_trusted_clients_trace_is_continued_where_a_strangers_is_linked(rig: Any, ok: Any) -> None:
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    for trusted, linked in (((), True), (("192.0.2.7",), False)):
        node = Node(Settings(trusted_clients=trusted, untrusted_trace="link"))
        r = rig(lambda scope, receive, send: ok(send), node=node)
        await r.request("POST", "/", parent)
        assert (r.span.parent is None) is linked
        assert bool(r.span.links) is linked


async def test_the_client_behind_a_trusted_proxy_is_named(rig: Any, ok: Any) -> None:
    node = Node(Settings(trusted_proxies=("192.0.2.7",)))
    r = rig(lambda scope, receive, send: ok(send), node=node)
    await r.request("POST", "/", {"x-forwarded-for": "203.0.113.9"})
    assert r.span.attributes["client.address"] == "203.0.113.9"
    assert r.span.attributes["network.peer.address"] == "192.0.2.7"


async def test_a_session_that_begins_inside_is_on_the_span_too(rig: Any, ok: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        ContextKey("session.id", str).set("minted")
        await ok(send)

    r = rig(app)
    await r.request("POST", "/")
    assert r.span.attributes["session.id"] == "minted"
    assert "session.id" not in r.point(), "an id is never a metric attribute"


async def test_the_session_survives_an_application_that_sets_too_many_attributes(rig: Any, ok: Any) -> None:
    """The SDK drops the oldest at 128: the session is given again at the end."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for n in range(200):
            trace.get_current_span().set_attribute(f"a{n}", n)
        await ok(send)

    caller = Caller(rig(app, node=keyed()))
    with session("chat-1"):
        await caller.post()
    attributes = caller.rig.span.attributes
    assert attributes["session.id"] == "chat-1"
    assert attributes["http.response.status_code"] == 200


async def test_the_scope_has_ended_when_the_request_has(rig: Any, ok: Any) -> None:
    scopes: list[Any] = []
    exchanges: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(current_scope())
        exchanges.append(scope[EXCHANGE])
        await ok(send)

    r = rig(app)
    await r.request()
    assert scopes[0].ended
    assert exchanges[0].scope is scopes[0]
    assert EXCHANGE not in r.last_scope


async def test_what_is_recorded_after_the_head_comes_with_the_sessions_next_ack(rig: Any, ok: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        SPENT.record(5)
        await send({"type": "http.response.body", "body": b"x"})

    caller = Caller(rig(app, node=keyed()))
    with session("chat-1"):
        await caller.post()
        assert SPENT.get() == 0
        await caller.post()
        assert SPENT.get() == 5


async def test_a_key_that_the_caller_types_otherwise_is_absent_and_counted(rig: Any, ok: Any) -> None:
    from otelctx.exchange.server import Scope

    async def app(scope: Any, receive: Any, send: Any) -> None:
        here = current_scope()
        assert isinstance(here, Scope)
        here._state = here.state.put("asgi.exchange.tier", 7)  # as a caller with another declaration would send it
        assert TIER.get() is None
        assert TIER.get("none") == "none"
        await ok(send)

    r = rig(app, node=keyed())
    await r.request("GET", "/")
    assert [point.value for point in r.points("otelctx.context.mistyped")] == [2]
