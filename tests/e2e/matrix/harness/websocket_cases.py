"""Websockets: a SERVER span for the handshake, a linked one for the connection, no point in the requests' duration."""

from __future__ import annotations

from harness.cell import DISCONNECTED, Cell, Parent, Seen
from harness.context_cases import Caller, lines_of
from harness.tables import BOOM
from harness.websocket import Socket
from support import TIER

from otelctx import semconv
from otelctx.context.current import session

__all__ = ["CASES"]


def _opened(cell: Cell) -> tuple[Socket, str, Parent]:
    socket, case, parent = cell.socket(b"/ws")
    assert socket.accepted, socket.answer
    assert [socket.ask(text) for text in ("a", "b", "c")] == ["a", "b", "c"]
    return socket, case, parent


def _connection(cell: Cell, case: str, parent: Parent) -> dict[str, object]:
    """The span of the connection, beside a handshake as it has to be."""
    seen: Seen = cell.take(case, parent)
    route = cell.app.route("/ws")
    cell.judge(seen, route=route, status=101, others=1, websocket=True)
    span = seen.named("websocket" if route is None else f"websocket {route}")
    assert (span["kind"], span["links"], span["parent_id"]) == ("INTERNAL", [seen.server["span_id"]], None)
    assert span["trace_id"] != seen.server["trace_id"]
    cell.follow(cell.connect())
    return dict(span)


def ws_closed_by_the_client(cell: Cell) -> None:
    socket, case, parent = _opened(cell)
    socket.close(4001)
    span = _connection(cell, case, parent)
    assert span["status"] == "UNSET"
    attributes = span["attributes"]
    assert isinstance(attributes, dict)
    counts = {semconv.MESSAGES_RECEIVED: 3, semconv.MESSAGES_SENT: 3, semconv.CLOSE_CODE: cell.mode.close_code or 4001}
    assert attributes.items() >= counts.items()


def ws_closed_by_the_server(cell: Cell) -> None:
    socket, case, parent = _opened(cell)
    assert socket.ask("close 4002") == 4002
    span = _connection(cell, case, parent)
    attributes = span["attributes"]
    assert isinstance(attributes, dict)
    counts = {semconv.MESSAGES_RECEIVED: 4, semconv.MESSAGES_SENT: 3, semconv.CLOSE_CODE: 4002}
    assert attributes.items() >= counts.items()


def ws_dropped(cell: Cell) -> None:
    """Gone without a word: 1006, or 1005 where the server knows no better, and no error."""
    socket, case, parent = _opened(cell)
    socket.drop()
    span = _connection(cell, case, parent)
    attributes = span["attributes"]
    assert isinstance(attributes, dict)
    assert span["status"] == "UNSET"
    assert attributes[semconv.CLOSE_CODE] in (1005, 1006)


def ws_exception(cell: Cell) -> None:
    socket, case, parent = _opened(cell)
    assert socket.ask("boom") in (1011, 1006, 1005, None, cell.app.close_code)
    span = _connection(cell, case, parent)
    attributes = span["attributes"]
    assert isinstance(attributes, dict)
    if cell.app.close_code is None:
        assert (span["status"], attributes["error.type"]) == ("ERROR", BOOM)
    else:  # all that there is to see
        assert attributes[semconv.CLOSE_CODE] == cell.app.close_code


def ws_refused(cell: Cell) -> None:
    """Closed before it was accepted."""
    socket, case, parent = cell.socket(b"/ws/closed")
    assert (socket.accepted, socket.answer.status) == (False, 403)
    cell.judge(cell.take(case, parent), route=cell.app.route("/ws/closed"), status=403, websocket=True)


def ws_denied(cell: Cell) -> None:
    """With a response of its own."""
    socket, case, parent = cell.socket(b"/ws/denied")
    assert (socket.accepted, socket.answer.status, socket.answer.body) == (False, 401, b"denied")
    cell.judge(cell.take(case, parent), route=cell.app.route("/ws/denied"), status=401, websocket=True)


def ws_session(cell: Cell) -> None:
    """A frame in the handshake holds as long as the connection."""
    caller = Caller(cell)
    with session("chat-50"), TIER.bound("gold"):
        exchange = caller.begin("/ws", body=None)
    socket, case, parent = cell.socket(b"/ws", lines_of(exchange))
    assert socket.accepted
    assert socket.ask("a") == "a"
    socket.close(1000)
    seen = cell.take(case, parent)
    inside = seen.inside()
    assert (inside["session"], inside["tier"]) == ("chat-50", "gold")
    assert all(span["attributes"]["session.id"] == "chat-50" for span in seen.spans)
    assert DISCONNECTED not in seen.attributes


def ws_not_found(cell: Cell) -> None:
    """Whatever the framework says to it, the span says the same, and no path is a route."""
    socket, case, parent = cell.socket(b"/ws/nowhere/acme")
    assert not socket.accepted
    assert socket.answer.status in (403, 404)
    cell.judge(cell.take(case, parent), route=None, status=socket.answer.status, websocket=True)


CASES = (
    ws_closed_by_the_client,
    ws_closed_by_the_server,
    ws_dropped,
    ws_exception,
    ws_refused,
    ws_denied,
    ws_session,
    ws_not_found,
)
