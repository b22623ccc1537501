"""One cell of the matrix: an application under a server mode, and what has to hold for each request to it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from harness.http1 import Answer, Http1, Lines
from harness.http2 import Http2
from harness.process import Process
from harness.tables import APPS, MODES
from harness.websocket import Socket

from otelctx import semconv

__all__ = ["DISCONNECTED", "DURATION", "Cell", "Parent", "Seen"]

DURATION = "http.server.request.duration"
ACTIVE = "http.server.active_requests"
DISCONNECTED = semconv.DISCONNECTED
_REQUIRED = {"http.request.method", "url.path", "url.scheme", "network.protocol.version", "server.address"}
_REQUIRED |= {"client.address", "network.peer.address", "network.peer.port"}
_ALLOWED = _REQUIRED | {
    "error.type",
    "http.request.method_original",
    "http.response.status_code",
    "http.route",
    "server.port",
    "url.query",
    "user_agent.original",
    "session.id",
}
_OURS = "otelctx."
_NUMBERS = {"network.peer.port", "server.port", "http.response.status_code"}


class Parent:
    """A remote parent: trace and span id, and the header that says so."""

    def __init__(self) -> None:
        self.trace_id, self.span_id = os.urandom(16).hex(), os.urandom(8).hex()

    @property
    def line(self) -> tuple[bytes, bytes]:
        return b"traceparent", f"00-{self.trace_id}-{self.span_id}-01".encode()


class Seen:
    """What was recorded of one request, or of several."""

    def __init__(self, taken: dict[str, Any], case: str, parent: Parent | None) -> None:
        self.spans: list[dict[str, Any]] = taken["spans"]
        self.metrics: dict[str, list[dict[str, Any]]] = taken["metrics"]
        self.call: dict[str, Any] = taken["calls"][case]
        self.parent = parent

    @property
    def server(self) -> dict[str, Any]:
        """The one SERVER span."""
        (span,) = (span for span in self.spans if span["kind"] == "SERVER")
        return span

    @property
    def attributes(self) -> dict[str, Any]:
        attributes: dict[str, Any] = self.server["attributes"]
        return attributes

    def others(self) -> list[dict[str, Any]]:
        return [span for span in self.spans if span is not self.server]

    def named(self, name: str) -> dict[str, Any]:
        (span,) = (span for span in self.spans if span["name"] == name)
        return span

    @property
    def points(self) -> list[dict[str, Any]]:
        return [point for point in self.metrics.get(DURATION, ()) if point["count"]]

    def inside(self) -> dict[str, Any]:
        """What the handler has seen."""
        (seen,) = self.call["seen"]
        return dict(seen)


class Cell:
    """``app`` is a name in ``APPS``, ``mode`` one in ``MODES``."""

    def __init__(self, process: Process, mode: str, app: str) -> None:
        self.process, self.mode, self.app = process, MODES[mode], APPS[app]
        self._name = app
        self._cases = 0
        self._open: list[Http1 | Http2] = []
        process.ask("take")

    def connect(self) -> Http1 | Http2:
        connection = (Http2 if self.mode.version == "2" else Http1)(self.process.port)
        self._open.append(connection)
        return connection

    def close(self) -> None:
        """Leave; nothing of a case that has failed half-way shall be seen by the next one."""
        for connection in self._open:
            connection.close()
        for case, call in self.process.ask("peek").items():
            if call["outcome"] is None:
                self.process.ask("cancel", case=case)
        with suppress(TimeoutError):
            self.process.wait(lambda calls: all(call["outcome"] is not None for call in calls.values()))

    # requests

    def lines(self, parent: Parent | None, more: Lines = ()) -> tuple[str, list[tuple[bytes, bytes]]]:
        """A new name for a request, and the headers that go with it."""
        self._cases += 1
        case = str(self._cases)
        lines = [(b"x-app", self._name.encode()), (b"x-case", case.encode()), (b"user-agent", b"matrix")]
        return case, [*lines, *([] if parent is None else [parent.line]), *more]

    def ask(
        self,
        method: str,
        target: bytes,
        more: Lines = (),
        body: bytes | None = None,
        connection: Http1 | Http2 | None = None,
        marks: tuple[str, ...] = (),
        closed: bool = False,
        **expected: Any,
    ) -> tuple[Answer, Seen]:
        """One request from its start to its end, judged by :meth:`judge` and followed by :meth:`follow`.

        ``closed``: the server closes the connection without having said so.
        """
        connection = connection or self.connect()
        parent = Parent()
        case, lines = self.lines(parent, more)
        answer = connection.read(connection.send(method, target, lines, body))
        seen = self.take(case, parent, marks)
        self.judge(seen, method=method, **{"status": answer.status, **expected})
        open_still = answer.whole and not closed and (answer.get(b"connection") or b"").lower() != b"close"
        self.follow(connection if open_still else self.connect())
        return answer, seen

    def socket(self, target: bytes, more: Lines = ()) -> tuple[Socket, str, Parent]:
        parent = Parent()
        case, lines = self.lines(parent, more)
        return Socket(self.connect(), target, lines), case, parent

    def take(self, case: str, parent: Parent | None, marks: tuple[str, ...] = ()) -> Seen:
        return Seen(self.process.take(case, marks=marks), case, parent)

    # judgement

    def judge(
        self,
        seen: Seen,
        *,
        method: str = "GET",
        route: str | None,
        status: int | None,
        error: str | None = None,
        others: int = 0,
        original: str | None = None,
        websocket: bool = False,
        version: str | None = None,
    ) -> None:
        """The rules of telemetry that hold for each request.

        ``others``: how many spans there are beside its own; ``version``: of the protocol, if it isn't the mode's.
        """
        span, attributes = seen.server, seen.attributes
        name = "HTTP" if original else method
        assert span["name"] == (name if route is None else f"{name} {route}")
        assert span["parent_id"] == (seen.parent and seen.parent.span_id)
        assert seen.parent is None or span["trace_id"] == seen.parent.trace_id
        assert span["status"] == ("UNSET" if error is None else "ERROR")
        assert len(seen.others()) == others, seen.spans
        ours = {key for key in attributes if key.startswith(_OURS)}
        assert attributes.keys() >= _REQUIRED
        assert attributes.keys() - ours <= _ALLOWED
        assert attributes["server.address"] == "matrix.test"
        assert all(isinstance(attributes[key], int) for key in _NUMBERS & attributes.keys())
        assert attributes.get("http.request.method_original") == original
        point = {
            "http.request.method": "_OTHER" if original else method,
            "url.scheme": "ws" if websocket else "http",
            "network.protocol.version": version or self.mode.version,
            "http.response.status_code": status,
            "http.route": route,
            "error.type": error,
        }
        for key, value in point.items():
            assert attributes.get(key) == value, key
        self._judge_metrics(seen, point, websocket)
        assert seen.call["restored"], "a Context has stayed behind"

    def _judge_metrics(self, seen: Seen, point: dict[str, Any], websocket: bool) -> None:
        if websocket:
            assert seen.points == []
        else:
            (recorded,) = seen.points
            assert recorded["count"] == 1
            assert recorded["attributes"] == {key: value for key, value in point.items() if value is not None}
        active = seen.metrics.get(ACTIVE, [])
        assert [each for each in active if each["value"] != 0] == []

    def follow(self, connection: Http1 | Http2) -> None:
        """The next request of the connection brings nothing with it, and gets nothing from the one before."""
        case, lines = self.lines(None)
        answer = connection.read(connection.send("GET", b"/items/next", lines))
        assert answer.status == 200
        seen = self.take(case, None)
        self.judge(seen, route=self.app.route("/items/{item_id}"), status=200)
        inside = seen.inside()
        assert inside["span_id"] == seen.server["span_id"]
        assert inside["baggage"] == {}
        assert (inside["session"], inside["tier"]) == (None, None)
