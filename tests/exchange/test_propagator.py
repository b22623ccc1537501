"""The propagator for instrumentation that is not ours: proven frames in, nothing out without a grant."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from time import time
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otelctx.context.current import ContextKey, current_scope, session, with_scope
from otelctx.context.scope import Scope
from otelctx.context.state import EMPTY
from otelctx.delta.codec import encode_frame, to_header
from otelctx.delta.messages import delta, full, ref
from otelctx.exchange.node import Node, set_default_node
from otelctx.exchange.propagator import OtelctxPropagator, grant

BIG = [ContextKey(f"propagator.big{n}", str) for n in range(20)]
LOCAL = ContextKey("propagator.local", str, flow="local")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def both(node: Callable[..., Node]) -> OtelctxPropagator:
    return OtelctxPropagator(node())


def full_frame(propagator: OtelctxPropagator) -> str:
    carrier: dict[str, str] = {}
    with session("s1"):
        propagator.inject(carrier, grant("localhost", node=propagator._node))
    return carrier["otelctx"]


def test_a_bare_inject_writes_nothing(both: OtelctxPropagator) -> None:
    carrier: dict[str, str] = {}
    with session("s1"):
        both.inject(carrier)
        both.inject(carrier, Context())
        both.inject(carrier, grant("api.example.com", node=both._node))
    both.inject(carrier, grant("localhost", node=both._node))
    assert carrier == {}


def test_a_granted_inject_writes_a_frame_that_extract_believes(both: OtelctxPropagator) -> None:
    carrier: dict[str, str] = {}
    with session("s1"), LOCAL.bound("stays"):
        both.inject(carrier, grant("localhost", node=both._node))
    context = both.extract(carrier)
    scope = current_scope(context)
    assert scope is not None
    assert (dict(scope.state), scope.source) == ({"session.id": "s1"}, "frame")
    assert both.fields == {"otelctx"}


def test_the_grant_is_for_the_context_given_not_for_the_current_one(both: OtelctxPropagator) -> None:
    carrier: dict[str, str] = {}
    other = with_scope(Scope(), Context())
    with session("s1"):
        both.inject(carrier, grant("localhost", context=other, node=both._node))
    assert carrier == {}


@pytest.mark.parametrize(
    "kind",
    [
        "unsigned",
        "forged",
        "ref",
        "ref to nothing",
        "delta",
        "wrong root",
        "twice",
        "rubbish",
        "newer table",
        "newer table, of nothing",
    ],
)
def test_only_a_proven_full_frame_is_believed(both: OtelctxPropagator, node: Callable[..., Node], kind: str) -> None:
    state = EMPTY.put("session.id", "s1").put("a", "b" * 90)
    party = node()
    base = EMPTY.put("session.id", "s1")
    lines = {
        "unsigned": [to_header(encode_frame(full(state)))],
        "forged": [node(keys="1:" + "QUJD" * 12).wire(full(state), time())],
        "ref": [party.wire(ref(state), time())],
        "ref to nothing": [party.wire(ref(EMPTY), time())],
        "wrong root": [party.wire(replace(full(state), root=base.root), time())],
        "delta": [party.wire(delta(base, state), time())],
        "twice": [party.wire(full(state), time())] * 2,
        "rubbish": [":%:"],
        "newer table": [party.wire(replace(full(state), table=2), time())],
        "newer table, of nothing": [party.wire(replace(full(EMPTY), table=2), time())],
    }[kind]
    assert both.extract({"otelctx": [party.wire(full(state), time())]}) != Context()
    assert both.extract({"otelctx": lines}) == Context()


def test_extract_never_takes_what_is_current(both: OtelctxPropagator) -> None:
    with session("mine"):
        assert current_scope(both.extract({})) is None


def test_extract_keeps_the_context_given(both: OtelctxPropagator) -> None:
    given = TraceContextTextMapPropagator().extract({"traceparent": TRACEPARENT}, Context())
    context = both.extract({"otelctx": full_frame(both)}, given)
    assert trace.get_current_span(context).get_span_context().trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert current_scope(context) is not None


class _Failing(Getter[Any]):
    def get(self, carrier: Any, key: str) -> list[str] | None:
        raise RuntimeError("a getter of somebody else")

    def keys(self, carrier: Any) -> list[str]:
        return []


def test_extract_never_raises(both: OtelctxPropagator, monkeypatch: pytest.MonkeyPatch) -> None:
    assert both.extract({}, None, _Failing()) == Context()
    monkeypatch.setenv("OTELCTX_KEYS", "nonsense")
    assert OtelctxPropagator().extract({"otelctx": full_frame(both)}) == Context()


class _Refusing(Setter[Any]):
    def set(self, carrier: Any, key: str, value: str) -> None:
        raise RuntimeError("a setter of somebody else")


def test_inject_never_raises(both: OtelctxPropagator, monkeypatch: pytest.MonkeyPatch) -> None:
    carrier: dict[str, str] = {}
    with session("s1"):
        granted = grant("localhost", node=both._node)
        both.inject(carrier, granted, _Refusing())
        monkeypatch.setenv("OTELCTX_KEYS", "nonsense")
        OtelctxPropagator().inject(carrier, granted)
    with session("s2") as scope, ExitStack() as stack:
        for key in BIG[:10]:
            stack.enter_context(key.bound("x" * 200))
        for key in BIG[10:]:  # as another branch of the request does meanwhile
            scope.set(key.spec, "x" * 200)
        both.inject(carrier, grant("localhost", node=both._node))
    assert carrier == {}


def test_the_default_node_is_used_if_none_is_given(both: OtelctxPropagator, node: Callable[..., Node]) -> None:
    set_default_node(node())
    assert current_scope(OtelctxPropagator().extract({"otelctx": full_frame(both)})) is not None
    set_default_node(node(keys=""))
    assert current_scope(OtelctxPropagator().extract({"otelctx": full_frame(both)})) is None


@pytest.mark.parametrize("imported", ["opentelemetry.propagate", "otelctx.exchange.propagator"])
def test_it_loads_by_its_entry_point_inside_the_import_of_propagate(imported: str) -> None:
    code = (
        f"import {imported}\n"
        "from opentelemetry.propagate import get_global_textmap\n"
        "print([type(p).__name__ for p in get_global_textmap()._propagators])"
    )
    env = {"OTEL_PROPAGATORS": "tracecontext,baggage,otelctx", "PATH": "", "PYTHONWARNINGS": "error"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['TraceContextTextMapPropagator', 'W3CBaggagePropagator', 'OtelctxPropagator']"
    assert out.stderr == ""


def test_the_module_does_not_import_propagate() -> None:
    """Which loads it, when OTEL_PROPAGATORS names it."""
    code = "import sys, otelctx.exchange.propagator\nprint('opentelemetry.propagate' in sys.modules)"
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


REQUEST = """
import asyncio
from opentelemetry import baggage, trace
from otelctx.asgi.middleware import ContextMiddleware
from otelctx.clients.headers import outgoing
from otelctx.context.current import session
from otelctx.exchange.client import begin
from otelctx.exchange.node import default_node
from opentelemetry import context as otel_context
async def app(scope, receive, send):
    span = trace.get_current_span().get_span_context()
    with session("s1"):
        ours = begin(default_node(), scheme="http", host="localhost", port=80, method="POST", path="/", body=1,
                     now=0.0, unix=1.8e9)
        sent = outgoing([], ours, otel_context.get_current(), default_node().registry)
    print(format(span.trace_id, "x")[-4:], dict(baggage.get_all()), sorted(name.decode() for name, _ in sent))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})
async def receive():
    return {"type": "http.request", "body": b""}
async def send(message):
    pass
headers = [(b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), (b"baggage", b"a=1")]
scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "query_string": b"", "scheme": "http"}
token = otel_context.attach(baggage.set_baggage("ambient", "1"))
asyncio.run(ContextMiddleware(app)(scope, receive, send))
"""


@pytest.mark.parametrize(
    ("propagators", "said"),
    [
        ("none", "0 {} ['otelctx']"),
        ("tracecontext", "319c {} ['otelctx', 'traceparent']"),
        ("tracecontext,baggage", "319c {'a': '1'} ['baggage', 'otelctx', 'traceparent']"),
        ("baggage,tracecontext", "319c {'a': '1'} ['baggage', 'otelctx', 'traceparent']"),
        ("otelctx,baggage,tracecontext", "319c {'a': '1'} ['baggage', 'otelctx', 'traceparent']"),
    ],
)
def test_requests_are_served_and_sent_whatever_propagators_the_operator_has_chosen(propagators: str, said: str) -> None:
    env = {"OTEL_PROPAGATORS": propagators, "PATH": ""}
    command = [sys.executable, "-W", "error", "-c", REQUEST]
    out = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (out.stderr, out.stdout.strip()) == ("", said)


async def test_it_works_under_starlettes_own_middleware(both: OtelctxPropagator) -> None:
    """Which passes a dict of lists as carrier, and uses what is extracted as parent."""
    from opentelemetry.sdk.trace import TracerProvider
    from starlette.middleware.opentelemetry import OpenTelemetryMiddleware

    before = propagate.get_global_textmap()
    propagate.set_global_textmap(CompositePropagator([TraceContextTextMapPropagator(), both]))
    traces = []
    nothing: Any = None

    async def app(scope: Any, receive: Any, send: Any) -> None:
        traces.append(trace.get_current_span().get_span_context().trace_id)

    middleware = OpenTelemetryMiddleware(app, tracer_provider=TracerProvider(shutdown_on_exit=False))
    for line in (full_frame(both), ":rubbish:"):
        headers = [(b"traceparent", TRACEPARENT.encode()), (b"otelctx", line.encode()), (b"host", b"localhost")]
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": headers, "query_string": b""}
        await middleware(scope, nothing, nothing)
    propagate.set_global_textmap(before)
    assert traces == [0x0AF7651916CD43DD8448EB211C80319C] * 2
