"""``LinkPair``: a caller and a callee joined in memory by the real protocol, with faults on demand.

Nothing of it is imitated: frames are made by ``exchange.client``, read by the middleware, and acks go the other way.
Only the network is missing, and the clock stands still until it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic, time
from typing import Any, Final, Generic, TypeVar

from opentelemetry import context as otel_context

from otelctx.asgi.types import App
from otelctx.clients.headers import outgoing
from otelctx.context.keys import Value
from otelctx.errors import ConfigError
from otelctx.exchange.client import ClientExchange, Verdict, begin
from otelctx.exchange.node import Node
from otelctx.semconv import ACK_HEADER
from otelctx.settings import Settings
from otelctx.testing.callee import Drive, Reply, Request, Worker, answering, by_hand, on_a_loop
from otelctx.testing.clock import ManualClock
from otelctx.testing.faults import ON_REQUEST, ON_RESPONSE, Fault, Lines

__all__ = ["Attempt", "LinkPair", "Sent"]

T = TypeVar("T")

_UNIX: Final = 1_800_000_000.0  # when it begins: a point in time like any other
_KEY: Final = "1:b3RlbGN0eC50ZXN0aW5nLCBub3QgYSBzZWNyZXQgISE="  # the same in both, and known to everybody
_NEAR: Final = "127.0.0.1"
_FAR: Final = "203.0.113.7"  # of the block for documentation: nobody's
_ACK: Final = ACK_HEADER.encode()
_KNOWN: Final = frozenset(
    {*ON_REQUEST, *ON_RESPONSE, "request_lost", "response_lost", "restarted", "other_worker", "stranger"}
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One time that a request was sent.

    - ``kind``: ``full``, ``delta`` or ``ref``, ``None`` if it went without a frame; ``bytes``: of the ``otelctx`` line
    - ``outcome``: what the callee made of it: ``accepted``, ``refuse`` (412, and the application did not run), ``run``
      (the application ran, flagged incomplete), ``ignored``, ``none`` without a frame, ``lost`` if it never arrived
    - ``ack``: ``ack`` or ``nack`` if the caller believed one, and its ``ack_bytes``
    """

    kind: str | None
    bytes: int
    outcome: str
    ack: str | None = None
    ack_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sent(Generic[T]):
    """What became of one request.

    - ``attempts``: one, or two if the callee asked for the whole state
    - ``seen``: the context that the callee's application was given, ``None`` if the last attempt did not run it;
      ``incomplete``: it was told that something is missing
    - ``result``: what the handler returned; ``status``, ``headers`` and ``body``: the response, ``status`` 0 if none
      came back
    """

    attempts: tuple[Attempt, ...]
    seen: Mapping[str, Value] | None
    incomplete: bool
    result: T | None
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @property
    def kinds(self) -> list[str | None]:
        """The ``kind`` of each attempt."""
        return [attempt.kind for attempt in self.attempts]


class LinkPair:
    """Two nodes, ``caller`` and ``callee``; what is current where :meth:`send` is called is what the caller sends.

    ``caller`` and ``callee`` are their settings, by default with one key that both have. Time is that of ``clock``, for
    both; it starts at 0. Not for use by two threads at once.
    """

    def __init__(
        self, *, caller: Settings | None = None, callee: Settings | None = None, clock: ManualClock | None = None
    ) -> None:
        """Raises :class:`~otelctx.errors.ConfigError` for settings that mean nothing."""
        self.clock = clock or ManualClock()
        self._start = monotonic()  # deadlines are of the process's clock
        self._settings = callee or Settings(keys=_KEY)
        self.caller = Node(caller or Settings(keys=_KEY))
        self.callee = Worker(self._settings)
        self._other: Worker | None = None

    def send(
        self,
        handler: Callable[[], T] | None = None,
        *,
        fault: Fault | None = None,
        method: str = "POST",
        path: str = "/",
        host: str = "localhost",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | None = b"",
    ) -> Sent[T]:
        """One request, answered by ``handler``, which runs in the callee's context.

        ``body`` ``None`` is one that can't be sent twice. ``host`` decides whether context may go there at all. Raises
        what ``handler`` raises, and :class:`~otelctx.errors.ConfigError` for a fault that there is not.
        """
        results: list[T] = []
        app = answering((lambda: results.append(handler())) if handler is not None else lambda: None)
        sent: Sent[T] = self._send(app, by_hand, fault, method, path, host, headers, body, results)
        return sent

    def asgi(
        self,
        app: App,
        *,
        fault: Fault | None = None,
        method: str = "POST",
        path: str = "/",
        host: str = "localhost",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | None = b"",
    ) -> Sent[None]:
        """One request, answered by the ASGI application ``app`` behind a ``ContextMiddleware`` of the callee's.

        It runs on an event loop of its own, without lifespan; one ``ContextMiddleware`` more inside of it steps aside.
        Otherwise like :meth:`send`. Inside of a running loop: ``await asyncio.to_thread(pair.asgi, app)``.
        """
        return self._send(app, on_a_loop, fault, method, path, host, headers, body, [])

    # one request

    def _send(
        self,
        app: App,
        drive: Drive,
        fault: Fault | None,
        method: str,
        path: str,
        host: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None,
        results: list[Any],
    ) -> Sent[Any]:
        if fault is not None and fault not in _KNOWN:
            raise ConfigError(f"there is no fault {fault!r}; there are {', '.join(sorted(_KNOWN))}")
        node = Node(Settings()) if fault == "stranger" else self.caller
        exchange = begin(
            node,
            scheme="http",
            host=host,
            port=80,
            method=method,
            path=path.partition("?")[0],
            body=None if body is None else len(body),
            idempotent=method in ("GET", "HEAD"),
            now=self._start + self.clock(),
            unix=_UNIX + self.clock(),
        )
        worker = self._worker(fault)
        given = [(b"host", host.encode()), *((name.encode(), value.encode("latin-1")) for name, value in headers)]
        attempts: list[Attempt] = []
        again = True
        while again:
            lines = outgoing(given, exchange, otel_context.get_current(), node.registry)
            request = Request(method, path, lines, body or b"", _FAR if fault == "stranger" else _NEAR)
            results.clear()
            reply, attempt, again = self._attempt(exchange, worker, app, request, drive, fault)
            attempts.append(attempt)
            fault = None  # what happens once
        result = results[0] if results and reply.status else None
        return Sent(
            tuple(attempts), reply.seen, reply.incomplete, result, reply.status, tuple(reply.headers), reply.body
        )

    def _worker(self, fault: Fault | None) -> Worker:
        if fault == "restarted":
            self.callee = Worker(self._settings)
        if fault != "other_worker":
            return self.callee
        self._other = self._other or Worker(self._settings)
        return self._other

    def _attempt(
        self,
        exchange: ClientExchange,
        worker: Worker,
        app: App,
        request: Request,
        drive: Drive,
        fault: Fault | None,
    ) -> tuple[Reply, Attempt, bool]:
        kind, size = exchange.kind, exchange.size
        if fault == "request_lost":
            exchange.failed()
            return Reply(), Attempt(kind, size, "lost"), False
        arriving = _changed(ON_REQUEST, fault, request.headers)
        worker.ahead = _UNIX + self.clock() - time()
        try:
            reply = worker.serve(
                app, Request(request.method, request.path, arriving, request.body, request.client), drive
            )
        except BaseException:
            exchange.failed()
            raise
        if fault == "response_lost":
            exchange.failed()
            reply.status, reply.headers, reply.body = 0, [], b""
            return reply, Attempt(kind, size, reply.outcome), False
        reply.headers = _changed(ON_RESPONSE, fault, reply.headers)
        acks = [value for name, value in reply.headers if name.lower() == _ACK]
        verdict = exchange.close(reply.status, acks, self._start + self.clock(), _UNIX + self.clock())
        attempt = Attempt(kind, size, reply.outcome, exchange.ack_kind, exchange.ack_size)
        return reply, attempt, verdict is Verdict.RESEND


def _changed(table: Mapping[Fault, Callable[[Lines], Lines]], fault: Fault | None, lines: Lines) -> Lines:
    change = None if fault is None else table.get(fault)
    return lines if change is None else change(lines)
