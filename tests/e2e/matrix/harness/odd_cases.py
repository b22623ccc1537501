"""Requests that nobody expects: their bytes, their number of headers, where they are mounted."""

from __future__ import annotations

import json

from harness.cell import Cell, Parent
from harness.http1 import Http1

__all__ = ["CASES"]

ITEM = "/items/{item_id}"


def root_path(cell: Cell) -> None:
    """The application's root is a part of the route, as it is of the path."""
    route = cell.app.route(ITEM)
    more = [(b"x-root-path", b"/proxied")]
    _, seen = cell.ask("GET", b"/proxied/items/7", more, route=route and f"/proxied{route}", status=200)
    assert seen.attributes["url.path"] == "/proxied/items/7"


def percent_encoded(cell: Cell) -> None:
    target = b"/items/%C3%A9%20%2B?q=%E2%82%AC+x&token=secret&a=b%26c"
    _, seen = cell.ask("GET", target, route=cell.app.route(ITEM), status=200)
    assert seen.attributes["url.path"] == "/items/\u00e9 +"
    assert seen.attributes["url.query"] == "q=%E2%82%AC+x&token=REDACTED&a=b%26c"


def no_utf8_in_the_target(cell: Cell) -> None:
    """Whatever the server makes of such a path, it is text that can be exported."""
    _, seen = cell.ask("GET", b"/items/%FF%FE%80?q=%FF%00&x=%C0%80", route=cell.app.route(ITEM), status=200)
    seen.attributes["url.path"].encode()
    assert seen.attributes["url.path"].startswith("/items/")
    assert seen.attributes["url.query"] == "q=%FF%00&x=%C0%80"


def no_utf8_in_a_header(cell: Cell) -> None:
    more = [(b"x-odd", b"\xff\\x"), (b"x-\x7e", b"\xe9"), (b"cookie", b"a=\xc3\x28")]
    _, seen = cell.ask("GET", b"/items/7", more, route=cell.app.route(ITEM), status=200)
    assert "x-odd" not in json.dumps(seen.attributes)


def odd_user_agent(cell: Cell) -> None:
    """The first of two lines, and as latin-1."""
    more = [(b"user-agent", b"other"), (b"accept", b"\xe9")]
    _, seen = cell.ask("GET", b"/items/7", more, route=cell.app.route(ITEM), status=200)
    assert seen.attributes["user_agent.original"].startswith("matrix")


def many_headers(cell: Cell) -> None:
    more = [(b"x-many-%d" % i, b"v") for i in range(cell.mode.headers)]
    cell.ask("GET", b"/items/7", more, route=cell.app.route(ITEM), status=200)


def long_path(cell: Cell) -> None:
    """A path is kept as far as an attribute may be long."""
    target = b"/items/" + b"x" * 6000
    _, seen = cell.ask("GET", target, route=cell.app.route(ITEM), status=200)
    assert 100 < len(seen.attributes["url.path"]) < 2000


def hostile_trace_context(cell: Cell) -> None:
    """Two lines, or a wrong one, are none at all."""
    connection = cell.connect()
    two = [Parent().line[1], Parent().line[1]]
    for lines in (two, [b"00-zz"], [b"\xff" * 55], [b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"]):
        more = [(b"traceparent", line) for line in lines] + [(b"baggage", b"\xff=\xfe,;;=,a")]
        case, headers = cell.lines(None, [*more, (b"otelctx", b"\xff!!"), (b"tracestate", b"\xff=\xff")])
        answer = connection.read(connection.send("GET", b"/items/7", headers))
        assert answer.status == 200
        seen = cell.take(case, None)
        assert seen.server["parent_id"] is None
        (point,) = seen.points
        assert point["count"] == 1
    cell.follow(connection)


def http_1_0(cell: Cell) -> None:
    """Which version it was is said; the connection ends with the answer."""
    connection, parent = cell.connect(), Parent()
    assert isinstance(connection, Http1)
    connection.spoken = b"1.0"
    case, lines = cell.lines(parent)
    answer = connection.read(connection.send("GET", b"/items/7", lines))
    assert answer.status == 200
    cell.judge(cell.take(case, parent), route=cell.app.route(ITEM), status=200, version="1.0")


def of_the_whole_server(cell: Cell) -> None:
    """``OPTIONS *`` has no path at all."""
    _, seen = cell.ask("OPTIONS", b"*", closed=True, route=None)
    assert seen.attributes["url.path"] in ("*", "/*", "/", "")


def not_sampled(cell: Cell) -> None:
    """No span, and counted all the same; the handler has the trace."""
    connection, parent = cell.connect(), Parent()
    case, lines = cell.lines(None, [(b"traceparent", parent.line[1].removesuffix(b"01") + b"00")])
    assert connection.read(connection.send("GET", b"/items/7", lines)).status == 200
    seen = cell.take(case, None)
    assert seen.spans == []
    (point,) = seen.points
    assert (point["count"], point["attributes"].get("http.route")) == (1, cell.app.route(ITEM))
    assert seen.inside()["trace_id"] == parent.trace_id
    cell.follow(connection)


CASES = (
    http_1_0,
    of_the_whole_server,
    not_sampled,
    root_path,
    percent_encoded,
    no_utf8_in_the_target,
    no_utf8_in_a_header,
    odd_user_agent,
    many_headers,
    long_path,
    hostile_trace_context,
)
