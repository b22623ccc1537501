"""Session context: a proven frame, what follows on it, a stranger's words, and an excluded path."""

from __future__ import annotations

import time
from typing import Any

from harness.cell import Cell, Parent, Seen
from harness.http1 import Answer
from harness.process import KEYS
from support import PROMPT, TIER

from otelctx import semconv
from otelctx.context.current import session
from otelctx.exchange.client import ClientExchange, begin
from otelctx.exchange.node import Node
from otelctx.settings import Settings

__all__ = ["CASES", "Caller"]

ITEM = "/items/{item_id}"


class Caller:
    """A service of ours that calls: it has the key, and remembers what was acked."""

    def __init__(self, cell: Cell) -> None:
        self._node = Node(Settings(keys=KEYS))
        self._port = cell.process.port

    def begin(self, path: str, body: int | None = 5, method: str = "POST") -> ClientExchange:
        now, unix = time.monotonic(), time.time()
        at: dict[str, Any] = {"scheme": "http", "host": "localhost", "port": self._port, "path": path}
        return begin(self._node, **at, method=method, body=body, now=now, unix=unix)

    def close(self, exchange: ClientExchange, answer: Answer) -> Any:
        """Read the ack, which must be there."""
        acks = [value for name, value in answer.headers if name.lower() == semconv.ACK_HEADER.encode()]
        assert acks or answer.status != 200, answer.headers
        return exchange.close(answer.status or 0, acks, time.monotonic(), time.time())


def lines_of(exchange: ClientExchange) -> list[tuple[bytes, bytes]]:
    return [(_bytes(name), _bytes(value)) for name, value in exchange.headers]


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _post(cell: Cell, exchange: ClientExchange, connection: Any) -> tuple[Answer, Seen]:
    """A frame on a POST: on a GET there is no ack, since a shared cache might keep it."""
    route = cell.app.route("/upload")
    lines = lines_of(exchange)
    return cell.ask("POST", b"/upload", lines, body=b"hello", connection=connection, route=route, status=200)


def proven_frames(cell: Cell) -> None:
    """Whole until three were acked, then by reference, then a change: the handler sees what its caller has."""
    caller, connection = Caller(cell), cell.connect()
    kinds = []
    with session("chat-42"), PROMPT.bound("p" * 60):
        for tier in ("gold", "gold", "gold", "gold", "silver"):
            with TIER.bound(tier):
                exchange = caller.begin("/upload")
                kinds.append(exchange.kind)
                answer, seen = _post(cell, exchange, connection)
                caller.close(exchange, answer)
                inside = seen.inside()
                assert (inside["session"], inside["tier"]) == ("chat-42", tier)
                assert seen.attributes["session.id"] == "chat-42"
                assert seen.attributes[semconv.FRAME_KIND] == exchange.kind
    assert kinds == ["full", "full", "full", "ref", "delta"]


def unknown_base(cell: Cell) -> None:
    """A frame that stands on what this process has never had is refused before the application, and then sent whole."""
    caller, connection = Caller(cell), cell.connect()
    with session("chat-43"), TIER.bound("gold"):
        for _ in range(3):
            exchange = caller.begin("/upload")
            answer, _ = _post(cell, exchange, connection)
            caller.close(exchange, answer)
        cell.process.ask("forget")
        again = caller.begin("/upload")
        assert again.kind == "ref"
        case, lines = cell.lines(parent := Parent(), lines_of(again))
        answer = connection.read(connection.send("POST", b"/upload", lines, b"hello"))
        seen = cell.take(case, parent)
        assert answer.status == 412
        cell.judge(seen, method="POST", route=None, status=412)
        assert seen.attributes[semconv.RESYNC] is True
        assert seen.call["seen"] == []
        assert caller.close(again, answer).name == "RESEND"
        _, seen = _post(cell, again, connection)
        assert seen.inside()["session"] == "chat-43"


def strange_frames(cell: Cell) -> None:
    """Without a proof nothing is believed; the application's own baggage goes through all the same."""
    other = Node(Settings(keys=KEYS.replace("1:A", "1:B")))
    with session("chat-44"), TIER.bound("gold"):
        caller = Caller(cell)
        caller._node = other
        exchange = caller.begin("/items/7")
    more = [*lines_of(exchange), (b"baggage", b"matrix.tier=gold,app=1")]
    _, seen = cell.ask("GET", b"/items/7", more, route=cell.app.route(ITEM), status=200)
    inside = seen.inside()
    assert (inside["session"], inside["tier"], inside["baggage"]) == (None, None, {"app": "1"})
    assert "otelctx.context.rejected" in seen.server["events"]


def excluded_path(cell: Cell) -> None:
    """No span and no metric, and the context flows all the same."""
    caller, connection, parent = Caller(cell), cell.connect(), Parent()
    with session("chat-45"), TIER.bound("gold"):
        exchange = caller.begin("/health", method="GET")
    case, lines = cell.lines(parent, [*lines_of(exchange), (b"baggage", b"app=1")])
    answer = connection.read(connection.send("GET", b"/health", lines))
    assert answer.status == 200
    seen = cell.take(case, parent)
    assert (seen.spans, seen.points) == ([], [])
    inside = seen.inside()
    assert (inside["trace_id"], inside["span_id"]) == (parent.trace_id, parent.span_id)
    assert (inside["session"], inside["tier"], inside["baggage"]) == ("chat-45", "gold", {"app": "1"})
    cell.follow(connection)


CASES = (proven_frames, unknown_base, strange_frames, excluded_path)
