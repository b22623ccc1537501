"""gRPC's own deadline is the scope's: it goes on to what the handler calls, and a caller's scope limits its calls."""

from __future__ import annotations

from time import monotonic
from typing import Any

import grpc
import pytest

from otelctx.context.current import current_scope, session

ROUNDED = 1.02  # what goes over the wire, and up


@pytest.fixture(params=["sync", "aio"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(serve: Any, style: str) -> Any:
    return serve(style)


def left(server: Any) -> list[float | None]:
    """What the handlers' scopes have left, in seconds, as they begin."""
    found: list[float | None] = []

    def act(request: bytes, context: Any) -> None:
        scope = current_scope()
        assert scope is not None
        found.append(None if scope.deadline is None else scope.deadline - monotonic())

    server.act = act
    return found


@pytest.mark.parametrize("kind", ["unary_unary", "stream_unary"])
def test_a_handlers_scope_has_what_the_call_has_left(server: Any, connect: Any, style: str, kind: str) -> None:
    found = left(server)
    connect(server.target, style).call(kind, b"a", timeout=600)
    (seconds,) = found
    assert seconds is not None
    assert 0 < seconds < 600 * ROUNDED


def test_without_a_deadline_there_is_none(server: Any, connect: Any, style: str) -> None:
    found = left(server)
    connect(server.target, style).call("unary_unary", b"a")
    assert found == [None]


@pytest.mark.parametrize(("given", "most"), [(None, 4000), (1000, 1000), (6000, 4000)])
def test_a_callers_scope_limits_its_calls_and_never_extends_them(
    server: Any, connect: Any, style: str, given: float | None, most: float
) -> None:
    found = left(server)
    client = connect(server.target, style)
    with session("chat-deadline", timeout=4000):
        client.call("unary_unary", b"a", timeout=given)
    (seconds,) = found
    assert seconds is not None
    assert most - 900 < seconds < most * ROUNDED, "a test takes 900 seconds at most"


def test_where_no_time_is_left_the_call_is_out_of_time(server: Any, connect: Any, style: str) -> None:
    client = connect(server.target, style)
    with session("chat-late", timeout=20):
        scope = current_scope()
        assert scope is not None
        scope.limit(monotonic() - 1)
        with pytest.raises(grpc.RpcError) as caught:
            client.call("unary_unary", b"a")
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
