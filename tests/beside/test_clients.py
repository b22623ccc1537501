"""One CLIENT span for a request, whichever other instrumentation is inside or around."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests
from opentelemetry.trace import SpanKind, StatusCode

from otelctx.clients.dispatch import instrument
from otelctx.context.current import session

CONTRIB = "opentelemetry.instrumentation.httpx"
LIBRARIES = ["httpx", "httpx2"]


class Wire:
    """What leaves: each request's headers."""

    def __init__(self, library: Any, fail: bool = False) -> None:
        self.library, self.fail = library, fail
        self.headers: list[Any] = []

    def __call__(self, request: Any) -> Any:
        self.headers.append(request.headers)
        if self.fail:
            raise self.library.ConnectError("refused")
        return self.library.Response(200, content=b"ok")

    def parent(self) -> str:
        (value,) = self.headers[-1].get_list("traceparent")
        return str(value.split("-")[2])


def instrumentor(contrib: Callable[[str, str], Any], library: str) -> Any:
    return contrib("httpx", {"httpx": "HTTPXClientInstrumentor", "httpx2": "HTTPX2ClientInstrumentor"}[library])


def check(world: Any, wire: Wire, by: str) -> None:
    span = world.one("CLIENT")
    assert span.instrumentation_scope.name == by
    assert wire.parent() == f"{span.context.span_id:016x}"
    assert span.attributes["session.id"] == "s-1"
    assert [p.count for p in world.points("http.client.request.duration")] == [1]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("first", "by"), [("theirs", "otelctx"), ("ours", CONTRIB)])
def test_a_client_that_both_have_instrumented(
    world: Any, contrib: Callable[[str, str], Any], library: str, first: str, by: str
) -> None:
    """The one that comes last is outside. Theirs around ours is joined, theirs inside ours is kept quiet."""
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    wire = Wire(module)
    client = module.Client(transport=module.MockTransport(wire), base_url="http://upstream.example")
    both = [lambda: instrument(client, **world.ours)]
    both.insert(
        0 if first == "theirs" else 1,
        lambda: instrumentor(contrib, library)().instrument_client(client, **world.theirs),
    )
    for instrumented in both:
        instrumented()
    with client, session("s-1"):
        client.get("/x").raise_for_status()
    check(world, wire, by)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("first", "by"), [("theirs", "otelctx"), ("ours", CONTRIB)])
async def test_an_async_client_that_both_have_instrumented(
    world: Any, contrib: Callable[[str, str], Any], library: str, first: str, by: str
) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    wire = Wire(module)
    async with module.AsyncClient(transport=module.MockTransport(wire), base_url="http://upstream.example") as client:
        if first == "ours":
            instrument(client, **world.ours)
        instrumentor(contrib, library)().instrument_client(client, **world.theirs)
        instrument(client, **world.ours)
        with session("s-1"):
            (await client.get("/x")).raise_for_status()
    check(world, wire, by)


def test_a_failure_under_the_other_ones_span_is_counted_by_us_and_on_that_span(
    world: Any, contrib: Callable[[str, str], Any]
) -> None:
    wire = Wire(httpx, fail=True)
    client = instrument(httpx.Client(transport=httpx.MockTransport(wire)), **world.ours)
    contrib("httpx", "HTTPXClientInstrumentor")().instrument_client(client, **world.theirs)
    with client, pytest.raises(httpx.ConnectError):
        client.get("http://upstream.example/x")
    span = world.one("CLIENT")
    assert span.status.status_code is StatusCode.ERROR
    (point,) = world.points("http.client.request.duration")
    assert point.attributes["error.type"] == "httpx.ConnectError"


def test_a_body_that_is_read_after_the_other_ones_span_has_ended_says_nothing_to_it(
    world: Any, contrib: Callable[[str, str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Theirs ends with the response's head."""

    class Broken(httpx.SyncByteStream):
        def __iter__(self) -> Any:
            yield b"x"
            raise httpx.ReadError("cut")

    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=Broken()))
    client = instrument(httpx.Client(transport=transport), **world.ours)
    contrib("httpx", "HTTPXClientInstrumentor")().instrument_client(client, **world.theirs)
    with client, pytest.raises(httpx.ReadError):
        client.get("http://upstream.example/x")
    assert world.one("CLIENT").instrumentation_scope.name == CONTRIB
    # Requests are told of at INFO by httpx itself; whatever complains does so above that, whoever it is.
    ours = ("opentelemetry", "otelctx")
    assert [r.getMessage() for r in caplog.records if r.levelno > logging.INFO or r.name.startswith(ours)] == []
    (point,) = world.points("http.client.request.duration")
    assert point.attributes["error.type"] == "httpx.ReadError"


def test_a_span_of_anybody_else_is_a_parent_and_nothing_more(world: Any) -> None:
    wire = Wire(httpx)
    client = instrument(httpx.Client(transport=httpx.MockTransport(wire)), **world.ours)
    tracer = world.tracers.get_tracer("app")
    with client, tracer.start_as_current_span("mine", kind=SpanKind.CLIENT) as mine:
        client.get("http://upstream.example/x")
    (ours,) = [s for s in world.spans("CLIENT") if s.name == "GET"]
    assert ours.parent.span_id == mine.get_span_context().span_id


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_global_instrumentation_makes_no_second_span(
    world: Any, instrumented: Any, contrib: Callable[[str, str], Any], library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    wire = Wire(module)
    monkeypatch.setattr(module.HTTPTransport, "handle_request", lambda self, request: wire(request))
    with instrumented("httpx", instrumentor(contrib, library).__name__), session("s-1"):
        with instrument(module.Client(), **world.ours) as client:
            client.get("http://upstream.example/x")
        check(world, wire, "otelctx")
        with module.Client() as plain:
            plain.get("http://upstream.example/x")
    assert [s.instrumentation_scope.name for s in world.spans("CLIENT")] == ["otelctx", CONTRIB]


def test_requests_and_its_global_instrumentation(world: Any, instrumented: Any) -> None:
    class Adapter(requests.adapters.BaseAdapter):
        def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            response = requests.Response()
            response.status_code, response.request = 200, request
            response.raw = None
            return response

        def close(self) -> None:
            pass

    with instrumented("requests", "RequestsInstrumentor"), requests.Session() as made, session("s-1"):
        made.mount("http://", Adapter())
        instrument(made, **world.ours).get("http://upstream.example/x")
    assert world.one("CLIENT").instrumentation_scope.name == "otelctx"
    assert "opentelemetry.instrumentation.requests" in sys.modules
