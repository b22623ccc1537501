"""Where a span's parent comes from: the request alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as otel_context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otelctx.asgi import headers
from otelctx.settings import Settings

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


async def test_the_span_is_the_child_of_the_inbound_parent(rig: Any, ok: Any) -> None:
    r = rig(lambda scope, receive, send: ok(send))
    await r.request(headers={**PARENT, "tracestate": "vendor=1"})
    assert trace.format_trace_id(r.span.context.trace_id) == TRACE
    assert trace.format_span_id(r.span.parent.span_id) == SPAN
    assert r.span.context.trace_state.get("vendor") == "1"


async def test_an_ambient_span_is_never_the_parent(rig: Any, ok: Any) -> None:
    """A server may run a request in the Context that the connection's first request has left."""
    r = rig(lambda scope, receive, send: ok(send))
    with r.tracers.get_tracer("x").start_as_current_span("stale") as stale:
        await r.request()
        await r.request(headers=PARENT)
    first, second = [s for s in r.spans if s.kind is trace.SpanKind.SERVER]
    assert first.parent is None
    assert trace.format_span_id(second.parent.span_id) == SPAN
    assert stale.get_span_context().trace_id not in (first.context.trace_id, second.context.trace_id)


async def test_joining_the_current_span_is_explicit(rig: Any, ok: Any) -> None:
    r = rig(lambda scope, receive, send: ok(send), server_span="join")
    with r.tracers.get_tracer("x").start_as_current_span("outer"):
        await r.request(headers=PARENT)
    assert r.span.name == "outer"
    assert r.span.attributes["http.response.status_code"] == 200
    assert r.point()["http.response.status_code"] == 200


async def test_inbound_baggage_reaches_the_application_joined_from_all_lines(rig: Any, ok: Any) -> None:
    seen: dict[str, object] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(baggage.get_all())
        await ok(send)

    r = rig(app)
    await r.request(headers=[(b"baggage", b"a=1"), (b"x", b"y"), (b"baggage", b"b=2")])
    assert seen == {"a": "1", "b": "2"}


async def test_oversized_baggage_is_left_out_and_not_logged(
    rig: Any, ok: Any, caplog: pytest.LogCaptureFixture
) -> None:
    r = rig(lambda scope, receive, send: ok(send))
    await r.request(headers={**PARENT, "baggage": "a=" + "s3cret" * 2000})
    assert "s3cret" not in caplog.text
    assert trace.format_span_id(r.span.parent.span_id) == SPAN


@pytest.mark.parametrize(("by", "linked"), [("option", True), ("settings", True), ("default", False)])
async def test_the_trace_of_an_untrusted_client_is_continued_or_linked(
    rig: Any, ok: Any, by: str, linked: bool
) -> None:
    from otelctx.exchange.node import Node

    options: dict[str, Any] = {}
    if by == "option":
        options["untrusted_trace"] = "link"
    elif by == "settings":
        options["node"] = Node(Settings(untrusted_trace="link"))
    r = rig(lambda scope, receive, send: ok(send), **options)
    await r.request(headers=PARENT)
    if linked:
        assert r.span.parent is None
        assert [trace.format_span_id(link.context.span_id) for link in r.span.links] == [SPAN]
        assert trace.format_trace_id(r.span.context.trace_id) != TRACE
    else:
        assert trace.format_span_id(r.span.parent.span_id) == SPAN


@pytest.mark.parametrize("broken", [None, "raises", "none"])
async def test_no_propagator_can_cost_the_request(
    rig: Any, ok: Any, broken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that raises, and OTEL_PROPAGATORS=none, where extract may give ``None``."""

    class Broken(TraceContextTextMapPropagator):
        def extract(self, *args: Any, **kwargs: Any) -> Any:
            if broken == "raises":
                raise RuntimeError("no")
            return None if broken == "none" else super().extract(*args, **kwargs)

    mine = Broken()
    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", mine)
    r = rig(lambda scope, receive, send: ok(send))
    response = await r.request(headers=PARENT)
    assert response.status == 200
    assert (r.span.parent is None) is (broken is not None)


@pytest.mark.parametrize("silent", [False, True])
async def test_of_several_propagators_the_one_that_raises_does_not_cost_the_trace(
    rig: Any, ok: Any, silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some raise where their header is absent, which the specification forbids and cannot prevent."""

    class Broken(TraceContextTextMapPropagator):
        @property
        def fields(self) -> set[str]:
            if silent:
                raise RuntimeError("no")
            return {"x-theirs"}

        def extract(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyError("x-theirs")

    seen: dict[str, object] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(baggage.get_all())
        await ok(send)

    parts = [W3CBaggagePropagator(), Broken(), TraceContextTextMapPropagator()]
    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", CompositePropagator(parts))
    r = rig(app)
    response = await r.request(headers={**PARENT, "baggage": "a=1"})
    assert (response.status, trace.format_span_id(r.span.parent.span_id), seen) == (200, SPAN, {"a": "1"})


@pytest.mark.parametrize("excluded", [(), "/*"])
@pytest.mark.parametrize("order", [1, -1])
async def test_ambient_baggage_never_becomes_the_requests(
    rig: Any, ok: Any, order: int, excluded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the baggage propagator first, a composite that is not given a Context begins with the current one."""
    seen: list[dict[str, object]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(baggage.get_all()))
        await ok(send)

    parts = [TraceContextTextMapPropagator(), W3CBaggagePropagator()][::order]
    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", CompositePropagator(parts))
    r = rig(app, excluded=excluded)
    token = otel_context.attach(baggage.set_baggage("ambient", "leaks"))
    try:
        for headers_ in ({}, PARENT, {**PARENT, "tracestate": "a=1"}, {"baggage": "own=1"}):
            await r.request(headers=headers_)
    finally:
        otel_context.detach(token)
    assert seen == [{}, {}, {}, {"own": "1"}]


def test_a_propagator_may_read_more_headers_than_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Curious(TraceContextTextMapPropagator):
        def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
            found = {key: getter.get(carrier, key) for key in getter.keys(carrier)}
            return otel_context.set_value("found", (found, getter.get(carrier, "X-Absent")), context)

    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", Curious())
    inbound = headers.Inbound(
        [(b"traceparent", b"x"), (b"X-Two", b"1"), (b"x-two", b"\xff"), (b"otelctx", b":AA==:"), (b"otelctx-ack", b"")]
    )
    context = headers.extract(inbound)
    assert context["found"] == ({"traceparent": ["x"], "x-two": ["1", "ÿ"]}, None)


_STANDARD = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])
_hex = st.text("0123456789abcdef", min_size=1, max_size=33)


@given(
    st.one_of(
        st.binary(max_size=60),
        st.builds("{}-{}-{}-{}".format, st.sampled_from(["00", "01", "ff"]), _hex, _hex, _hex).map(str.encode),
        st.builds(
            "00-{}-{}-{}".format,
            st.text("0123456789abcdef", min_size=32, max_size=32),
            st.text("0123456789abcdef", min_size=16, max_size=16),
            st.text("0123456789abcdefAF", min_size=2, max_size=2),
        ).map(str.encode),
    )
)
@example(b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01")
@example(b"00-0af7651916cd43dd8448eb211c80319c-" + b"0" * 16 + b"-01")
@example(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n")
@example(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03")
def test_our_own_reading_of_traceparent_is_the_propagators(value: bytes) -> None:
    """The short cut gives what the standard propagator gives, but for a trailing newline, which no header can have."""
    inbound = headers.Inbound([(b"traceparent", value)])
    ours = trace.get_current_span(headers.extract(inbound)).get_span_context()
    text = value.decode("latin-1")
    theirs = trace.get_current_span(
        _STANDARD.extract({"traceparent": [text]}, otel_context.Context())
    ).get_span_context()
    assert ours == theirs or text.endswith("\n")


@pytest.mark.parametrize("second", ["00-" + "c" * 32 + "-" + "d" * 16 + "-01", "", PARENT["traceparent"], "rubbish"])
@pytest.mark.parametrize("how", ["lines", "joined", "turned"])
async def test_of_two_parents_none_is_believed(rig: Any, ok: Any, second: str, how: str) -> None:
    """A proxy that adds its own to the client's sends two lines, or one with a comma. To take one of them would be to
    guess; to fail would cost the request."""
    first = PARENT["traceparent"]
    lines = [first, second] if how == "lines" else [second, first] if how == "turned" else [f"{first},{second}"]
    r = rig(lambda scope, receive, send: ok(send))
    response = await r.request(headers=[(b"traceparent", line.encode()) for line in lines])
    assert response.status == 200
    assert r.span.parent is None


async def test_a_tracestate_of_several_lines_is_one_list(rig: Any, ok: Any) -> None:
    r = rig(lambda scope, receive, send: ok(send))
    lines = [(b"traceparent", PARENT["traceparent"].encode()), (b"tracestate", b"a=1,"), (b"tracestate", b",b=2")]
    await r.request(headers=lines)
    assert dict(r.span.context.trace_state) == {"a": "1", "b": "2"}
