"""Requests that somebody gives up: the client, at each of the moments at which it can, or the server."""

from __future__ import annotations

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


CASES = (left_in_the_request, left_before_the_response, left_in_the_stream, left_after_the_response, cancelled)
