"""Requests that are answered: whole, in pieces, with an exception, by nobody."""

from __future__ import annotations

import json

from harness.cell import DISCONNECTED, DURATION, Cell, Parent
from harness.tables import BOOM

from otelctx import semconv

__all__ = ["CASES"]

ITEM = "/items/{item_id}"


def plain_answer(cell: Cell) -> None:
    answer, seen = cell.ask("GET", b"/items/7?q=1", route=cell.app.route(ITEM), status=200)
    assert json.loads(answer.body)["span_id"] == seen.server["span_id"]
    assert seen.attributes["url.path"] == "/items/7"
    assert seen.attributes["url.query"] == "q=1"
    assert seen.attributes["user_agent.original"] == "matrix"


def mounted(cell: Cell) -> None:
    """A tenant's name is in the path of the mount, and in no route."""
    route = cell.app.route("/tenants/{tenant}/items/{item_id}")
    _, seen = cell.ask("GET", b"/tenants/acme/items/7", route=route, status=200)
    assert "acme" not in json.dumps([seen.points, seen.server["name"]])


def streamed(cell: Cell) -> None:
    answer, seen = cell.ask("GET", b"/stream", route=cell.app.route("/stream"), status=200)
    assert (answer.whole, answer.body) == (True, b"one\ntwo\nthree\n")
    assert seen.call["during"] == [seen.server["span_id"]] * 3
    assert seen.attributes[semconv.CHUNKS] >= 3
    assert 0 <= seen.attributes[semconv.TIME_TO_FIRST_BYTE] <= seen.points[0]["sum"]


def server_sent_events(cell: Cell) -> None:
    answer, seen = cell.ask("GET", b"/sse", route=cell.app.route("/sse"), status=200)
    assert answer.body == b"data: one\n\ndata: two\n\ndata: three\n\n"
    assert (answer.get(b"content-type") or b"").startswith(b"text/event-stream")
    assert seen.call["during"] == [seen.server["span_id"]] * 3


def background(cell: Cell) -> None:
    """Work after the last byte is linked to the request, and no part of it."""
    route = cell.app.route("/background")
    answer, seen = cell.ask("GET", b"/background", marks=("worked",), others=2, route=route, status=200)
    assert answer.body == b"done"
    work, after = seen.named("work"), seen.named(f"GET {route} background")
    assert (after["kind"], after["links"], after["parent_id"]) == ("INTERNAL", [seen.server["span_id"]], None)
    assert after["trace_id"] != seen.server["trace_id"]
    assert (work["trace_id"], work["parent_id"]) == (after["trace_id"], after["span_id"])
    assert seen.server["ended"] <= work["started"]


def outliving(cell: Cell) -> None:
    """A task that goes on when the application has returned: its spans hang on one that is linked to the request."""
    route = cell.app.route("/outliving")
    _, seen = cell.ask("GET", b"/outliving", marks=("worked",), others=2, route=route, status=200)
    work, after = seen.named("work"), seen.named(f"GET {route} background")
    assert (after["links"], after["parent_id"]) == ([seen.server["span_id"]], None)
    assert (work["trace_id"], work["parent_id"]) == (after["trace_id"], after["span_id"])
    assert seen.server["ended"] <= work["started"]


def exception(cell: Cell) -> None:
    """Before the response: a 500 and the exception's name, if it comes out of the application."""
    error = BOOM if cell.app.raises else "500"
    answer, seen = cell.ask("GET", b"/boom", closed=True, route=cell.app.route("/boom"), status=500, error=error)
    assert answer.status == 500
    assert seen.server["events"] == (["exception"] if cell.app.raises else [])


def exception_in_the_stream(cell: Cell) -> None:
    """The client has its 200 and a body without an end; the span says why."""
    app, route = cell.app, cell.app.route("/boom-late")
    parent, connection = Parent(), cell.connect()
    case, lines = cell.lines(parent)
    token = connection.send("GET", b"/boom-late", lines)
    connection.read_until(token, b"one\n")
    seen = cell.take(case, parent)
    if app.late_after:  # the response was complete by then: what failed is work after it
        cell.judge(seen, others=1, route=route, status=200)
        after = seen.named(f"GET {route} background")
        assert (after["status"], after["attributes"]["error.type"]) == ("ERROR", app.late)
        assert (after["links"], after["events"]) == ([seen.server["span_id"]], ["exception"])
    else:
        cell.judge(seen, route=route, status=200, error=app.late)
    answer = connection.so_far(token) if cell.mode.leaves_open and not app.late_ends else connection.read(token)
    assert answer.whole is app.late_ends
    assert answer.body == b"one\n"
    cell.follow(cell.connect())


def error_of_ours(cell: Cell) -> None:
    """It is answered with its own status, unless the framework has answered it before it gets to us."""
    status = cell.app.ours
    error = "otelctx.errors.Overloaded" if cell.app.raises or status == 503 else "500"
    route = cell.app.route("/overloaded")
    answer, _ = cell.ask("GET", b"/overloaded", closed=True, route=route, status=status, error=error)
    assert answer.status == status
    assert answer.get(b"retry-after") == (b"3" if status == 503 else None)


def not_found(cell: Cell) -> None:
    answer, seen = cell.ask("GET", b"/nowhere/acme", route=None, status=404)
    assert answer.status == 404
    assert "acme" not in json.dumps(seen.points)


def head(cell: Cell) -> None:
    answer, _ = cell.ask("HEAD", b"/items/7", route=cell.app.route(ITEM), status=200)
    assert answer.body == b""
    assert answer.whole is not cell.mode.body_after_head


def options(cell: Cell) -> None:
    """Some answer it by themselves, some don't allow it; the route is the same."""
    answer, _ = cell.ask("OPTIONS", b"/items/7", route=cell.app.route(ITEM))
    assert answer.status in (200, 204, 405)


def unknown_method(cell: Cell) -> None:
    """Anybody can send any method, so that all unknown ones are one."""
    answer, _ = cell.ask("PROPFIND", b"/items/7", original="PROPFIND", route=cell.app.route(ITEM, "PROPFIND"))
    assert answer.status in (200, 405)


def upload(cell: Cell) -> None:
    body = b"x" * 40_000
    answer, _ = cell.ask("POST", b"/upload", body=body, route=cell.app.route("/upload"), status=200)
    assert json.loads(answer.body) == {"size": len(body)}


def upload_in_pieces(cell: Cell) -> None:
    """Of a length that nobody has announced."""
    parent, connection = Parent(), cell.connect()
    case, lines = cell.lines(parent)
    answer = connection.read(connection.pieces(b"/upload", lines, [b"x" * size for size in (1, 700, 9000)]))
    assert json.loads(answer.body) == {"size": 9701}
    cell.judge(cell.take(case, parent), method="POST", route=cell.app.route("/upload"), status=200)
    cell.follow(connection)


def expect_continue(cell: Cell) -> None:
    """The informational response is none that is recorded."""
    parent, connection = Parent(), cell.connect()
    case, lines = cell.lines(parent, [(b"expect", b"100-continue"), (b"content-length", b"5")])
    token = connection.send("POST", b"/upload", lines, more=True)
    assert connection.wait_hint(token) == 100
    connection.piece(token, b"hello")
    answer = connection.read(token)
    assert json.loads(answer.body) == {"size": 5}
    cell.judge(cell.take(case, parent), method="POST", route=cell.app.route("/upload"), status=200)
    cell.follow(connection)


def early_hints(cell: Cell) -> None:
    answer, _ = cell.ask("GET", b"/hints", route=cell.app.route("/hints"), status=200)
    assert (answer.hints, answer.body) == ([103], b"hinted")


def trailers(cell: Cell) -> None:
    """The response is complete with its trailers, not before."""
    more = [(b"te", b"trailers")]
    answer, _ = cell.ask("GET", b"/trailers", more, route=cell.app.route("/trailers"), status=200)
    assert (answer.body, answer.trailers) == (b"body", [(b"x-sum", b"42")] if cell.app.trailers else [])


def file(cell: Cell) -> None:
    """Sent by the application, or by the server itself where it offers to."""
    answer, seen = cell.ask("GET", b"/file", route=cell.app.route("/file"), status=200)
    assert answer.body == cell.process.body
    if seen.call["extensions"] == ["http.response.pathsend"]:
        assert semconv.CHUNKS not in seen.attributes


def at_once(cell: Cell) -> None:
    """Pipelined on HTTP/1.1, concurrent streams on HTTP/2: each is a request of its own."""
    connection, parent = cell.connect(), Parent()
    cases = [cell.lines(each) for each in (None, parent, None)]
    connection.hold()
    tokens = [connection.send("GET", b"/items/%d" % i, lines) for i, (_, lines) in enumerate(cases)]
    connection.release()
    assert [connection.read(token).status for token in tokens] == [200, 200, 200]
    taken = cell.process.take(*(case for case, _ in cases))
    spans = {span["attributes"]["url.path"]: span for span in taken["spans"]}
    assert len(taken["spans"]) == len(spans) == 3
    assert [spans[f"/items/{i}"]["parent_id"] for i in range(3)] == [None, parent.span_id, None]
    assert len({span["trace_id"] for span in spans.values()}) == 3
    for i, (case, _) in enumerate(cases):
        (inside,) = taken["calls"][case]["seen"]
        assert inside["span_id"] == spans[f"/items/{i}"]["span_id"]
        assert inside["baggage"] == {}
    (point,) = taken["metrics"][DURATION]
    assert point["count"] == 3
    assert all(DISCONNECTED not in span["attributes"] for span in spans.values())


def streams_at_once(cell: Cell) -> None:
    """Four streams beside each other: each is in its own span, to its last piece."""
    parents = [Parent() for _ in range(4)]
    connections = [cell.connect()] * 4 if cell.mode.version == "2" else [cell.connect() for _ in parents]
    cases = [cell.lines(parent) for parent in parents]
    for each in connections:
        each.hold()
    tokens = [each.send("GET", b"/stream", lines) for each, (_, lines) in zip(connections, cases, strict=True)]
    for each in connections:
        each.release()
    answers = [each.read(token) for each, token in zip(connections, tokens, strict=True)]
    assert [answer.body for answer in answers] == [b"one\ntwo\nthree\n"] * 4
    taken = cell.process.take(*(case for case, _ in cases))
    spans = {span["parent_id"]: span for span in taken["spans"]}
    assert len(taken["spans"]) == 4
    for (case, _), parent in zip(cases, parents, strict=True):
        assert taken["calls"][case]["during"] == [spans[parent.span_id]["span_id"]] * 3
    (point,) = taken["metrics"][DURATION]
    assert point["count"] == 4


def kept_alive(cell: Cell) -> None:
    """One connection, one request after the other, whatever became of the one before."""
    connection = cell.connect()
    for target in (b"/items/1", b"/stream", b"/nowhere"):
        route = None if target == b"/nowhere" else cell.app.route(ITEM if target == b"/items/1" else "/stream")
        cell.ask("GET", target, connection=connection, route=route)


CASES = (
    plain_answer,
    mounted,
    streamed,
    server_sent_events,
    background,
    outliving,
    exception,
    error_of_ours,
    exception_in_the_stream,
    not_found,
    head,
    options,
    unknown_method,
    upload,
    upload_in_pieces,
    expect_continue,
    early_hints,
    trailers,
    file,
    at_once,
    streams_at_once,
    kept_alive,
)
