"""Requests that somebody gives up: the client, at each of the moments at which it can, or the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.cell import DISCONNECTED, Cell, Parent, Seen

from otelctx import semconv

__all__ = ["CASES"]


def _left(cell: Cell, seen: Seen, path: str | None, status: int | None, method: str = "GET") -> None:
    """A client that leaves is no error, and is marked."""
    cell.judge(seen, method=method, route=path and cell.app.route(path), status=status)
    assert seen.attributes[DISCONNECTED] is True
    assert seen.server["events"] == []


def left_in_the_request(cell: Cell) -> None:
    """Gone before its body was complete: whatever the framework answers then, nobody has got it."""
    parent, connection = Parent(), cell.connect()
    case, lines = cell.lines(parent, [(b"content-length", b"100000")])
    token = connection.send("POST", b"/upload", lines, b"begin", more=True)
    cell.process.wait(lambda calls: case in calls and (cell.app.reads_first or bool(calls[case]["seen"])))
    connection.leave(token)
    _left(cell, cell.take(case, parent), None if cell.app.reads_first else "/upload", None, "POST")


def left_before_the_response(cell: Cell) -> None:
    parent, connection = Parent(), cell.connect()
    case, lines = cell.lines(parent)
    token = connection.send("GET", b"/slow", lines)
    cell.process.wait(lambda calls: "waiting" in calls.get(case, {"marks": ()})["marks"])
    connection.leave(token)
    seen = cell.take(case, parent)
    _left(cell, seen, "/slow", seen.attributes.get("http.response.status_code"))
    assert seen.attributes.get("http.response.status_code") in (None, 204)


def left_in_the_stream(cell: Cell) -> None:
    parent, connection = Parent(), cell.connect()
    case, lines = cell.lines(parent)
    token = connection.send("GET", b"/endless", lines)
    connection.read_until(token, b"data: tick\n\n")
    connection.leave(token)
    seen = cell.take(case, parent)
    _left(cell, seen, "/endless", 200)
    assert set(seen.call["during"]) == {seen.server["span_id"]}
    if len(seen.call["during"]) > 2:
        assert seen.attributes[semconv.CHUNKS] > 1


def left_in_an_idle_stream(cell: Cell) -> None:
    """Nothing is being sent when the client goes: a model that is thinking, and a user's Stop."""
    parent, connection = Parent(), cell.connect()
    case, lines = cell.lines(parent, [(b"x-style", b"idle")])
    token = connection.send("GET", b"/endless", lines)
    connection.read_until(token, b"data: tick\n\n")
    cell.process.wait(lambda calls: "waiting" in calls[case]["marks"])
    connection.leave(token)
    _left(cell, cell.take(case, parent), "/endless", 200)


def left_without_reading(cell: Cell) -> None:
    """The application waits in ``send`` for a client that reads nothing, and then goes."""
    parent, connection = Parent(), cell.connect()
    case, lines = cell.lines(parent, [(b"x-style", b"large")])
    token = connection.send("GET", b"/endless", lines)
    cell.process.wait(lambda calls: case in calls and bool(calls[case]["during"]))
    cell.process.wait(_stalls(case))
    connection.leave(token)
    seen = cell.take(case, parent)
    _left(cell, seen, "/endless", 200)
    assert set(seen.call["during"]) == {seen.server["span_id"]}


def _stalls(case: str) -> Callable[[dict[str, Any]], bool]:
    """A condition: the call has not got on for a while, or will never wait, as on Hypercorn's HTTP/2."""
    lengths = [-1]

    def condition(calls: dict[str, Any]) -> bool:
        lengths.append(len(calls[case]["during"]))
        return lengths[-1] > 200 or (len(lengths) > 30 and len(set(lengths[-30:])) == 1)

    return condition


def left_after_the_response(cell: Cell) -> None:
    """That is nothing."""
    parent, connection = Parent(), cell.connect()
    case, lines = cell.lines(parent)
    token = connection.send("GET", b"/stream", lines)
    assert connection.read(token).whole
    connection.close()
    seen = cell.take(case, parent)
    cell.judge(seen, route=cell.app.route("/stream"), status=200)
    assert DISCONNECTED not in seen.attributes


def cancelled(cell: Cell) -> None:
    """By the server, as one that shuts down does; it asked for it, so that nobody is to be blamed."""
    parent, connection = Parent(), cell.connect()
    case, lines = cell.lines(parent)
    connection.send("GET", b"/slow", lines)
    cell.process.wait(lambda calls: "waiting" in calls.get(case, {"marks": ()})["marks"])
    cell.process.ask("cancel", case=case)
    seen = cell.take(case, parent)
    assert seen.call["outcome"] == "CancelledError"
    _left(cell, seen, "/slow", None)


CASES = (
    left_in_the_request,
    left_before_the_response,
    left_in_the_stream,
    left_in_an_idle_stream,
    left_without_reading,
    left_after_the_response,
    cancelled,
)
