"""A request of which nothing is recorded takes a way of its own: nobody, inside or outside, can tell it by anything."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as otel_context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk import environment_variables
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import NonRecordingSpan, NoOpTracerProvider

from otelctx.asgi import middleware
from otelctx.asgi.middleware import ContextMiddleware, exchange_of
from otelctx.asgi.passing import EXCHANGE, Passing
from otelctx.asgi.route import set_route
from otelctx.context.current import ContextKey, UpKey, current_scope, session, snapshot
from otelctx.errors import OtelctxError
from otelctx.exchange import w3c
from otelctx.exchange.node import Node
from otelctx.settings import Settings
from otelctx.telemetry import events

pytestmark = pytest.mark.usefixtures("nothing_set")
TIER = ContextKey("asgi.passing.tier", str)
PUBLIC = ContextKey("asgi.passing.public", str, visibility="public")
SPENT = UpKey("asgi.passing.spent", int, rule="sum")
TRACE = b"0af7651916cd43dd8448eb211c80319c"
SAMPLED = b"00-" + TRACE + b"-b7ad6b7169203331-01"
DROPPED = b"00-" + TRACE + b"-b7ad6b7169203331-00"
# An SDK without the switch counts the spans that it starts: it has to be asked for each.
COUNTS = not hasattr(environment_variables, "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED")


class Counted(IdGenerator):
    """The same ids for each provider."""

    def __init__(self) -> None:
        self.last = 0

    def generate_span_id(self) -> int:
        self.last += 1
        return self.last

    def generate_trace_id(self) -> int:
        self.last += 1
        return self.last


def sampled_by(sampler: Sampler) -> dict[str, Any]:
    return {
        "tracer_provider": TracerProvider(sampler, id_generator=Counted(), shutdown_on_exit=False),
        "metrics": False,
    }


def excluded() -> dict[str, Any]:
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    return {"excluded": "/*", "tracer_provider": TracerProvider(shutdown_on_exit=False), "meter_provider": meters}


QUIET: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing set": dict,
    "no SDK": lambda: {"tracer_provider": NoOpTracerProvider(), "meter_provider": NoOpMeterProvider()},
    "excluded": excluded,
    "never sampled": lambda: sampled_by(ALWAYS_OFF),
    "root never sampled": lambda: sampled_by(ParentBased(ALWAYS_OFF)),
    "sampled as the parent": lambda: sampled_by(ParentBased(ALWAYS_ON)),
    "linked": lambda: {**excluded(), "untrusted_trace": "link"},
    "kept native": lambda: {**excluded(), "native": "keep"},
}


class Busy(OtelctxError):
    status = 503


class Odd(Exception):
    """An application's own."""


def span_of(span: Any) -> Any:
    found = span.get_span_context()
    return span.is_recording(), tuple(found), span is trace.INVALID_SPAN


async def in_a_task(action: Any) -> Any:
    return await asyncio.create_task(action())


def in_a_bare_thread(action: Callable[[], Any]) -> Any:
    """As OpenTelemetry's instrumentation of threads does: the Context alone goes along."""
    here, out = otel_context.get_current(), []

    def run() -> None:
        token = otel_context.attach(here)
        out.append(action())
        otel_context.detach(token)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return out[0]


def outgoing() -> Any:
    """What calls made here would carry, by the global propagator and by our own clients."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    ours: dict[str, str] = {}
    w3c.inject(ours, otel_context.get_current())
    return carrier, ours


ACTIONS: dict[str, Callable[[Any], Any]] = {
    "span": lambda scope: span_of(trace.get_current_span()),
    "server span": lambda scope: events.server_span() is None or span_of(events.server_span()),
    "scope": lambda scope: (current_scope() is None, current_scope() is exchange_of(scope).scope),  # type: ignore[union-attr]
    "exchange": lambda scope: [
        getattr(exchange_of(scope), name) for name in ("outcome", "trusted", "client", "baggage", "kind", "event")
    ],
    "set": lambda scope: TIER.set("gold") and TIER.get(),
    "public": lambda scope: PUBLIC.set("seen") and None,
    "get": lambda scope: TIER.get(),
    "state": lambda scope: dict(snapshot()),
    "record": lambda scope: (SPENT.record(2), SPENT.get()),
    "reset": lambda scope: current_scope().reset(TIER.set("x")),  # type: ignore[union-attr]
    "thread": lambda scope: in_a_bare_thread(lambda: (TIER.set("thread") and None, dict(snapshot()))),
    "baggage": lambda scope: dict(baggage.get_all()),
    "outgoing": lambda scope: outgoing(),
    "route": lambda scope: set_route("/x"),
    "context": lambda scope: len(otel_context.get_current()),
    "child": lambda scope: span_of(trace.NoOpTracer().start_span("child")),
    "headers": lambda scope: list(scope["headers"]),
    "words": lambda scope: sorted(key for key in scope if key != "headers"),
}
ENDS = ["answers", "refuses", "refuses late", "fails", "fails late", "is cut off", "is silent", "says nothing"]


def act(names: list[str], scope: Any, seen: list[Any]) -> None:
    seen.extend((name, ACTIONS[name](scope)) for name in names)


async def end(kind: str, send: Any, lines: Any) -> None:
    if kind == "refuses":
        raise Busy("busy")
    if kind == "fails":
        raise Odd
    if kind == "is cut off":
        raise asyncio.CancelledError
    if kind == "says nothing":
        return
    await send({"type": "http.response.start", "status": 200, "headers": lines, "trailers": True})
    if kind == "refuses late":
        raise Busy("too late")
    await send({"type": "http.response.body", "body": b"a", "more_body": True})
    await send({"type": "http.response.zerocopysend", "file": 0, "count": 0, "more_body": True})
    if kind == "fails late":
        raise Odd
    await send({"type": "http.response.body", "body": b"b"})
    await send({"type": "http.response.trailers", "headers": [(b"x-t", b"1"), (b"otelctx-ack", b"mine")]})


class Story:
    """One application's doings, and all that can be seen of them."""

    def __init__(self, actions: list[str], inner: list[str], later: list[str], kind: str, lines: Any) -> None:
        self.actions, self.inner, self.later, self.kind, self.lines = actions, inner, later, kind, lines

    async def __call__(self, options: dict[str, Any], headers: Any, client: Any) -> tuple[list[Any], bool]:
        seen: list[Any] = []
        out: list[Any] = []
        fast: list[bool] = []
        options.setdefault("node", Node(Settings(trusted_clients=("192.0.2.0/24",))))

        async def app(scope: Any, receive: Any, send: Any) -> None:
            fast.append(type(scope[EXCHANGE]) is Passing)
            act(self.actions, scope, seen)

            async def inside() -> None:
                act(self.inner, scope, seen)

            await in_a_task(inside)
            with session("chat-1"), TIER.bound("bound"):
                act(self.inner, scope, seen)
            background.append(asyncio.create_task(late(scope)))
            act(self.actions, scope, seen)
            await end(self.kind, send, list(self.lines))

        async def late(scope: Any) -> None:
            await ended.wait()
            act(self.later, scope, seen)
            seen.append(("ended", current_scope() is not None and current_scope().ended))  # type: ignore[union-attr]

        async def send(message: Any) -> None:
            out.append(dict(message))

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        background: list[asyncio.Task[None]] = []
        ended = asyncio.Event()
        scope = {"type": "http", "method": "GET", "path": "/", "scheme": "http", "http_version": "1.1"}
        scope |= {"headers": list(headers), "client": client}
        before = otel_context.get_current()
        try:
            await ContextMiddleware(app, **options)(scope, receive, send)
        except BaseException as error:
            seen.append((type(error), str(error)))
        seen.append((otel_context.get_current() is before, current_scope() is None, EXCHANGE in scope))
        ended.set()
        await asyncio.gather(*background)
        return [*seen, *out], fast == [True]


LATE = ["span", "get", "state", "record", "baggage", "outgoing", "route", "child", "thread"]
_NAMES = b"host accept traceparent traceparent tracestate x-forwarded-for baggage otelctx Traceparent X-A x-new "
_names = st.sampled_from([*_NAMES.split(), b"otelctx-timeout-ms", b""])
_values = st.sampled_from(
    [
        *(SAMPLED, DROPPED, SAMPLED[:-1], SAMPLED.upper(), b"cc" + SAMPLED[2:] + b"-later"),
        *(b"00-" + b"0" * 32 + SAMPLED[35:], b"", b"\xff", b"a=1", b"192.0.2.7", b"203.0.113.9"),
        *(b"asgi.passing.public=x,b=2", b"1.AAAA", b"250"),
    ]
)
_answers = st.lists(
    st.tuples(st.sampled_from([b"x-own", b"otelctx-ack", b"Otelctx", b"content-type", b""]), st.just(b"1")), max_size=4
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(sorted(QUIET)),
    headers=st.lists(st.tuples(_names, _values), max_size=6),
    address=st.sampled_from([None, ("192.0.2.7", 4711), ("203.0.113.9", 1), ("", None)]),
    actions=st.lists(st.sampled_from(sorted(ACTIONS)), max_size=4),
    inner=st.lists(st.sampled_from(sorted(ACTIONS)), max_size=3),
    later=st.lists(st.sampled_from(LATE), max_size=2),
    ending=st.sampled_from(ENDS),
    lines=_answers,
)
@example("never sampled", [(b"traceparent", SAMPLED)], None, ["context"], ["span", "outgoing"], ["get"], "answers", [])
@example("no SDK", [(b"x-forwarded-for", b"192.0.2.7")], ("192.0.2.7", 1), ["exchange"], ["set"], [], "refuses", [])
@example("linked", [(b"traceparent", SAMPLED)], ("203.0.113.9", 1), ["span"], [], [], "answers", [])
async def test_nothing_tells_the_two_ways_apart(
    kind: str, headers: Any, address: Any, actions: Any, inner: Any, later: Any, ending: str, lines: Any
) -> None:
    story = Story(actions, inner, later, ending, lines)
    await story(QUIET[kind](), headers, address)  # by which the names are usual ones, which they have to be
    seen, _ = await story(QUIET[kind](), headers, address)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(middleware, "passing", lambda *args: None)
        expected, passed = await story(QUIET[kind](), headers, address)
    assert not passed
    assert seen == expected


@pytest.mark.parametrize("kind", ["nothing set", "no SDK", "excluded", "never sampled", "kept native"])
@pytest.mark.parametrize("parent", [[], [(b"traceparent", SAMPLED)]])
async def test_the_usual_request_of_which_nothing_is_recorded_passes(kind: str, parent: Any) -> None:
    headers = [(b"host", b"a.example"), (b"x-forwarded-for", b"192.0.2.7"), *parent]
    story = Story([], [], [], "answers", [])
    await story(QUIET[kind](), headers, None)
    passes = (await story(QUIET[kind](), headers, None))[1]
    assert passes is not (kind == "never sampled" and COUNTS)


@pytest.mark.parametrize("kind", ["root never sampled", "sampled as the parent"])
@pytest.mark.parametrize("parent", [None, SAMPLED, DROPPED])
async def test_where_the_parent_decides_the_sampler_is_asked(kind: str, parent: bytes | None) -> None:
    headers = [(b"host", b"a.example"), *([] if parent is None else [(b"traceparent", parent)])]
    story = Story([], [], [], "answers", [])
    await story(QUIET[kind](), headers, None)
    assert not (await story(QUIET[kind](), headers, None))[1]


async def test_all_threads_of_a_request_get_one_scope() -> None:
    seen: list[Any] = []
    barrier = threading.Barrier(8)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        def look() -> None:
            barrier.wait()
            seen.append(current_scope())

        threads = [threading.Thread(target=copy_context().run, args=(look,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen.append(current_scope())

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": None}
    await ContextMiddleware(app, node=Node(Settings()), **QUIET["no SDK"]())(scope, nobody, nobody)
    assert len(seen) == 9
    assert len({id(found) for found in seen}) == 1


async def test_a_context_that_is_kept_holds_nothing_of_the_server() -> None:
    kept: list[Any] = []

    class Server:
        async def send(self, message: Any) -> None:
            pass

    async def app(scope: Any, receive: Any, send: Any) -> None:
        kept.append(otel_context.get_current())
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def serve() -> weakref.ref[Server]:
        server = Server()
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"traceparent", SAMPLED)], "client": None}
        await ContextMiddleware(app, node=Node(Settings()), **QUIET["no SDK"]())(scope, nobody, server.send)
        return weakref.ref(server)

    seen = await serve()
    gc.collect()
    assert seen() is None
    assert len(kept) == 1


@pytest.mark.parametrize("kind", ["no SDK", "excluded", *(() if COUNTS else ["never sampled"])])
async def test_the_span_of_such_a_request_is_copied_as_others_are(kind: str) -> None:
    copies: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert type(scope[EXCHANGE]) is Passing
        span = trace.get_current_span()
        copies.extend([span, copy.copy(span), copy.deepcopy(span), pickle.loads(pickle.dumps(span))])

    headers = [(b"traceparent", SAMPLED)]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "client": None}
    await ContextMiddleware(app, node=Node(Settings()), **QUIET[kind]())(scope, nobody, nobody)
    assert {type(made) for made in copies[1:]} == {NonRecordingSpan}
    assert [made.get_span_context() for made in copies[1:]] == [copies[0].get_span_context()] * 3
    assert copies[0].get_span_context().trace_id == int(TRACE, 16)


async def nobody(*args: Any) -> Any:
    return {"type": "http.disconnect"}
