"""One try at an upstream: a CLIENT span, a connection, the exchange of frames, and what is learnt of the upstream."""

from __future__ import annotations

import asyncio
from typing import Final

from otelctx.asgi.types import Headers
from otelctx.clients.attempt import Attempt, Party, start
from otelctx.clients.attempt import Head as Answered
from otelctx.clients.refusals import too_large
from otelctx.clients.target import Target
from otelctx.gateway.connection import Connection
from otelctx.gateway.failures import BadResponse, ClientGone, ConnectFailed, UpstreamClosed, UpstreamFailure
from otelctx.gateway.head import RequestHead, below
from otelctx.gateway.health import Signal
from otelctx.gateway.inbound import Inbound
from otelctx.gateway.options import Timeouts
from otelctx.gateway.parser import Head
from otelctx.gateway.upstreams import Upstream
from otelctx.semconv import ACK_HEADER

__all__ = ["Outbound", "encode", "target_of"]

_ACK: Final = ACK_HEADER.encode()
_MAX_DISCARD: Final = 65536
_UNAVAILABLE: Final = 503


def encode(method: str, target: bytes, headers: Headers) -> bytes:
    """A request's head as HTTP/1.1. Raises :class:`BadResponse` rather than write a line that isn't one."""
    lines = [method.encode(), b" ", target, b" HTTP/1.1\r\n"]
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"\r\n")
    data = b"".join(lines)
    if data.count(b"\n") != len(headers) + 2 or data.count(b"\r") != len(headers) + 2:
        raise BadResponse("a header has a line break")
    return data


def _texts(headers: Headers) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


class Outbound:
    """``number`` counts the tries before it. Over by :meth:`done`, :meth:`discard` or :meth:`fail`."""

    __slots__ = (
        "_answered", "_attempt", "_connection", "_head", "_inbound", "_party", "_target", "_timeouts", "upstream",
    )  # fmt: skip

    def __init__(
        self, party: Party, upstream: Upstream, head: RequestHead, inbound: Inbound, timeouts: Timeouts, number: int
    ) -> None:
        """Raises :class:`~otelctx.gateway.failures.MalformedRequest` for a target that leads out of the upstream."""
        self.upstream = upstream
        self._party = party
        self._head = head
        self._target = below(upstream.prefix, head.target)
        self._inbound = inbound
        self._timeouts = timeouts
        self._connection: Connection | None = None
        self._answered = False
        self._attempt: Attempt = start(party, target_of(upstream, head, inbound.content, number))
        upstream.active += 1

    @property
    def sent(self) -> int:
        """How often the request has been sent, the tries before this one included."""
        return self._attempt.sent

    async def open(self, *, repeatable: bool) -> Head:
        """Send the request, once more if the exchange of frames needs it, or if it may have met the end of a connection
        that had been kept; the latter only if it is ``repeatable``. Raises :class:`UpstreamFailure` and others."""
        pool, connect = self.upstream.pool, self._timeouts.connect
        fresh = False
        while True:
            self._connection = connection = await (pool.connect(connect) if fresh else pool.take(connect))
            try:
                answer = await self._send(connection)
            except UpstreamClosed as error:
                if not repeatable or not connection.crossed:
                    raise
                fresh = True  # and with that another one can't have been kept: there is no second time
                self._cross(error)
                continue
            acks = [value for name, value in answer.headers if name == _ACK]
            refused = too_large(answer.status, _texts(answer.headers) if answer.status == 400 else {})
            resend = self._attempt.answered(Answered(answer.status, answer.version, acks, refused))
            self._answered = True
            if not resend:
                self._judge(answer)
                return answer
            await self._drop()
            self._attempt.end()
            self._attempt, self._answered = self._attempt.again(), False

    async def _send(self, connection: Connection) -> Head:
        head = self._head
        lines: Headers = [(b"host", self.upstream.authority.encode()), *head.lines, *self._inbound.framing()]
        connection.begin(head.method)
        self._inbound.send(connection, encode(head.method, self._target, self._attempt.headers(lines)))
        return await connection.head(self._timeouts.first_byte)

    def _cross(self, error: UpstreamClosed) -> None:
        """The upstream has closed a connection as it may at any time, which says nothing of its health."""
        self._attempt.failed(error)
        self._attempt = start(self._party, target_of(self.upstream, self._head, self._inbound.content, self.sent))

    async def chunk(self) -> bytes:
        """The next piece of the response's body; no bytes at its end."""
        if self._connection is None:
            return b""
        return await self._connection.chunk(self._timeouts.idle)

    def done(self) -> None:
        """The response has been read to its end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self.upstream.pool.give(connection)
        self._end(None)

    async def discard(self) -> None:
        """The response is not wanted."""
        await self._drop()
        self._end(None)

    def fail(self, error: BaseException) -> None:
        """It ends by ``error``, which is the upstream's fault if it is an :class:`UpstreamFailure`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        if isinstance(error, ConnectFailed):
            self.upstream.see(Signal.GONE, error.reason)
        elif isinstance(error, UpstreamFailure):
            self.upstream.see(Signal.FAILED, error.reason)
        # The client's own doing is no error of the request to the upstream.
        cause = asyncio.CancelledError() if isinstance(error, ClientGone) else error
        if not self._answered:
            self._attempt.failed(cause)
        self._end(cause)

    def _end(self, error: BaseException | None) -> None:
        self._attempt.end(error)
        self.upstream.active -= 1

    def _judge(self, answer: Head) -> None:
        # One that says when to come again is busy and knows it: to leave it alone for longer would make a refusal of a
        # few requests one of all.
        if answer.status == _UNAVAILABLE and not any(name == b"retry-after" for name, _ in answer.headers):
            self.upstream.see(Signal.FAILED, "unavailable")
        else:
            self.upstream.see(Signal.OK)

    async def _drop(self) -> None:
        """Make the connection free for another request, if that takes little."""
        connection = self._connection
        size = 0
        while connection is not None and size <= _MAX_DISCARD and (piece := await self.chunk()):
            size += len(piece)
        self._connection = None
        if connection is not None:
            self.upstream.pool.give(connection)


def target_of(
    upstream: Upstream, head: RequestHead, content: bytes | None, number: int, upgrade: bool = False
) -> Target:
    """Where a request goes, for its span and its frame. ``upgrade``: it is a handshake."""
    return Target.of(
        method=head.method,
        scheme=upstream.scheme,
        host=upstream.host,
        port=upstream.port,
        raw_path=below(upstream.prefix, head.target),
        userinfo=False,
        body=None if content is None else len(content),
        headers=[*head.lines, (b"upgrade", b"websocket")] if upgrade else head.lines,
        sent=number,
    )
