"""The serving side of one exchange: from request headers to a scope, and from the scope to the ack. No I/O, but for the
shared tier's, where there is one: :meth:`ServerExchange.settle`.

outcome    the application runs with          answer
none       baggage of a trusted client        no ack
accepted   the caller's state                 ACK
run        nothing, flagged incomplete        NACK on its own response
refuse     it does not run                    412 and NACK
ignored    nothing                            no ack: a stranger learns nothing
wait       not decided: see ``settle``
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from otelctx.context.keys import Value
from otelctx.context.scope import Scope
from otelctx.context.state import State, Window, entry
from otelctx.delta import timeout
from otelctx.delta.baggage import parse
from otelctx.delta.messages import FrameKind, Held, NackReason
from otelctx.delta.receiver import Accepted, Ignored, NeedBase, Refuse, Run
from otelctx.errors import ContextLimitExceeded
from otelctx.exchange.answer import nack, write_ack
from otelctx.exchange.known import Known
from otelctx.exchange.node import Node, Received
from otelctx.exchange.pending import Batch, SessionKey, new_event, session_key
from otelctx.semconv import (
    ACK_HEADER,
    EVENT_CONTEXT_PROCEEDED,
    EVENT_CONTEXT_REJECTED,
    EVENT_CONTEXT_RESYNC,
)

__all__ = ["ServerExchange", "ServerOutcome", "open", "plain"]

ServerOutcome = Literal["none", "accepted", "run", "refuse", "ignored", "wait"]
Headers = Iterable[tuple[bytes, bytes]]

_OUTCOMES: Final[Mapping[type, ServerOutcome]] = {
    Accepted: "accepted",
    Run: "run",
    Refuse: "refuse",
    Ignored: "ignored",
}
_KINDS: Final = {kind: kind.name.lower() for kind in FrameKind}
_REFUSED: Final = 412
_SAFE: Final = ("GET", "HEAD")


def open(
    node: Node,
    *,
    lines: Sequence[bytes | str],
    baggage: str | None,
    client: str | None,
    forwarded: str | None,
    now: float,
    may_wait: bool = False,
) -> ServerExchange:
    """Decide what to believe of one request. Never raises.

    ``lines`` are the values of all ``otelctx`` header lines, ``baggage`` and ``forwarded`` (``X-Forwarded-For``) those
    of theirs, joined, ``client`` is the address of the connection's peer, ``now`` Unix time in seconds. Who
    ``may_wait`` awaits :meth:`ServerExchange.settle` before anything else, if the node has a shared tier.
    """
    behind = node.client(client, forwarded)
    address, trusted = behind
    foreign, ours = baggage, None
    if baggage:
        members = parse((baggage,), node.registry)
        # Our keys never stay in the baggage: a stranger's would be believed by the next hop, which trusts us.
        foreign, ours = members.foreign or None, members.ours
    if not lines:
        scope = _from_baggage(ours) if ours and trusted else Scope()
        return ServerExchange(node, None, scope, address, trusted, foreign)
    known = node.known(lines[0], now) if len(lines) == 1 else None
    if known is not None:
        accepted = known.accepted
        return ServerExchange(node, accepted, Scope(accepted.state, source="frame"), address, True, foreign, known)
    received = node.receive(lines, behind, now, may_wait=may_wait)
    if isinstance(received, NeedBase):
        exchange = ServerExchange(node, None, Scope(), address, True, foreign)
        exchange.wait(received)
        return exchange
    vouched = trusted or not isinstance(received, Ignored)
    return ServerExchange(node, received, _scope(received), address, vouched, foreign)


def plain(node: Node, client: str | None, forwarded: str | None) -> ServerExchange:
    """:func:`open` for a request that has neither a frame nor baggage, as almost all have that are not between us."""
    address, trusted = node.era.clients.get((client, forwarded)) or node.client(client, forwarded)
    return ServerExchange(node, None, Scope(), address, trusted, None)


def _scope(received: Received) -> Scope:
    if isinstance(received, Accepted):
        return Scope(received.state, source="frame")
    return Scope(incomplete=isinstance(received, Run))


def _from_baggage(ours: Mapping[str, Value]) -> Scope:
    try:
        entries = [entry(name, value) for name, value in ours.items()]
        return Scope(State({item.name: item for item in entries}), source="baggage")
    except ContextLimitExceeded:  # none of it is better than an unmarked part
        return Scope(incomplete=True)


class ServerExchange:
    """One request's side of it.

    - ``outcome``: see the module; ``scope``: the scope to run the application in
    - ``trusted``: the sender is vouched for by its MAC or address, so its trace may be continued as parent
    - ``client``: the address of whoever stands behind the connection, if it is known
    - ``baggage``: what the application and the propagator shall see of the baggage: everybody's members but ours

    Whatever answers takes ``now``, Unix time: an answer is signed as of the moment when it goes out, which may be hours
    after the request, and a signature of then would be too old by now.
    """

    __slots__ = (
        "_closed",
        "_known",
        "_need",
        "_node",
        "_received",
        "_told",
        "baggage",
        "client",
        "outcome",
        "scope",
        "trusted",
    )

    def __init__(
        self,
        node: Node,
        received: Received | None,
        scope: Scope,
        client: str | None,
        trusted: bool,
        baggage: str | None,
        known: Known | None = None,
    ) -> None:
        self._node = node
        self._received = received
        self._known = known
        self._closed = False
        self._need: NeedBase | None = None
        self._told: Window | None = None  # the window report that has been answered or left to the next ack
        self.outcome: ServerOutcome = "none" if received is None else _OUTCOMES[type(received)]
        self.scope = scope
        self.client = client
        self.trusted = trusted
        self.baggage = baggage

    def limit(self, lines: Sequence[bytes | str], now: float) -> None:
        """Take the deadline that the ``otelctx-timeout-ms`` ``lines`` name over into the scope, from a trusted sender
        only. ``now`` is monotonic seconds."""
        left = timeout.decode(lines) if self.trusted else None
        if left is not None:
            self.scope.limit(now + left)

    # the shared tier

    def wait(self, need: NeedBase) -> None:
        """The base is not in this process: it is not decided yet."""
        self._need, self.outcome = need, "wait"

    async def settle(self) -> None:
        """Ask the shared tier for a missing base and decide; begin to store there what was accepted.

        ``scope`` and ``outcome`` are what they are when this returns. Raises nothing but a cancellation.
        """
        tier, need = self._node.shared, self._need
        if tier is None:
            return
        if need is not None:
            base = await tier.load(need.domain, need.root)
            received = self._node.resume(need, base, self.client)
            deadline = self.scope.deadline
            self._need, self._received = None, received
            self.scope, self.outcome = _scope(received), _OUTCOMES[type(received)]
            self.scope.deadline = deadline
        found = self._received
        if isinstance(found, Accepted) and found.held is not Held.NONE:
            tier.share(found.domain, found.state)

    # what to tell of it

    @property
    def kind(self) -> str | None:
        """``full``, ``delta`` or ``ref``; ``None`` if no frame was read."""
        received = self._received
        return None if received is None or isinstance(received, Ignored) else _KINDS[received.kind]

    @property
    def reason(self) -> str | None:
        """Why the frame was not accepted, as a short stable word."""
        received = self._received
        if received is None or isinstance(received, Accepted):
            return None
        return received.reason if isinstance(received, Ignored) else received.reason.name.lower()

    @property
    def event(self) -> str | None:
        """The event to emit, if there is something to tell."""
        received = self._received
        if received is None or isinstance(received, Accepted):
            return None
        if isinstance(received, Refuse):
            return EVENT_CONTEXT_RESYNC
        if isinstance(received, Run) and _base_missing(received):
            return EVENT_CONTEXT_PROCEEDED
        return EVENT_CONTEXT_REJECTED

    @property
    def ack_kind(self) -> str:
        """``ack`` or ``nack``."""
        return "ack" if self.outcome == "accepted" else "nack"

    # what to answer

    def refusal(self, now: float) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Status, headers and body of the answer given in the application's stead; only for outcome ``refuse``.

        ``content-length`` is left to the shell, as is closing an HTTP/1.1 connection whose request body was not read.
        """
        received = self._received
        if not isinstance(received, Refuse):
            raise ValueError(f"an exchange with outcome {self.outcome!r} is not refused")
        error = {
            "message": "the context frame refers to a state that is not held here; repeat the request with a full one",
            "type": "invalid_request_error",
            "param": None,
            "code": "context_base_unknown",
        }
        headers = [
            (b"content-type", b"application/json"),
            (b"cache-control", b"no-store"),
            (ACK_HEADER.encode(), nack(self._node, received, now).encode()),
        ]
        return _REFUSED, headers, json.dumps({"error": error}).encode()

    def ack(self, method: str, headers: Headers, now: float) -> bytes | None:
        """The ``otelctx-ack`` of the response head, with what is committed by now; ``None`` if there must be none.

        Without an accepted frame there is none, nor on a GET or HEAD response that a shared cache may keep: it would
        serve one session's ack to another.
        """
        received = self._received
        if method in _SAFE and not _uncached(headers):
            return None
        if isinstance(received, Accepted):
            return self._acked(received, now)
        return nack(self._node, received, now).encode() if isinstance(received, Run) else None

    def _acked(self, received: Accepted, now: float) -> bytes:
        node, known = self._node, self._known
        if known is None or node.shared is not None or node.pending.waits(known.session) or not self.scope.silent:
            return self._write(received, now)
        era = node.era
        ack = known.answer(era, now)
        if ack is None:
            # Of nothing, and not of what there is by now: it is answered to others as well.
            value, _ = write_ack(node, received, Batch({}), None, False, now)
            ack = value.encode()
            known.answered(ack, era, now)
        return ack

    def last_ack(self, now: float) -> bytes | None:
        """What answers the frame where that is done at the end, and the caller reads it there for certain: the ack with
        all that there is to tell, or the NACK; ``None`` if there must be none."""
        received = self._received
        if isinstance(received, Accepted):
            return self._write(received, now, final=True)
        return nack(self._node, received, now).encode() if isinstance(received, Refuse | Run) else None

    def news(self, now: float, *, final: bool) -> bytes | None:
        """An ack as between the two ends of a channel, where none is needed: only with something to tell, of the
        request or of what has waited. ``final``: nothing more comes for it."""
        received = self._received
        if not isinstance(received, Accepted):
            return None
        key = _session(received)
        waits = key is not None and self._node.pending.waits(key)
        if not waits and not self.scope.untold and self.scope.window is self._told:
            return None
        return self._write(received, now, final=final)

    def _write(self, received: Accepted, now: float, *, final: bool = False) -> bytes:
        """The ack with what there is to tell by now, and what has waited since the session's last one."""
        fresh = self.scope.take_ups()
        key = _session(received)
        if key is None:
            batch, waiting = Batch(fresh, new_event(fresh)), None
        else:
            batch, waiting = self._node.pending.take(key, fresh)
        self._told = self.scope.window
        value, left = write_ack(self._node, received, batch, _newer(self._told, waiting), final, now)
        if key is not None and left and not batch.shown:
            self._node.pending.put(key, Batch(left))
        return value.encode()

    def final_ack(self, now: float) -> str | None:
        """The ack at the end of a stream, with what came after the head; ``None`` without an accepted frame.

        Who can't read it there gets the same on the session's next ack, under the same event id, by which a caller
        that reads both counts it once.
        """
        received = self._received
        if not isinstance(received, Accepted):
            return None
        fresh = self.scope.take_ups()
        batch = Batch(fresh, new_event(fresh), shown=True)
        self._told = self.scope.window
        value, left = write_ack(self._node, received, batch, self._told, True, now)
        key = _session(received)
        if key is not None:
            carried = {name: up for name, up in fresh.items() if name not in left}
            self._node.pending.put(key, Batch(carried, batch.event, shown=True), self._told)
            self._node.pending.put(key, Batch(left))
        return value

    def close(self) -> None:
        """The request is over: end the scope, and keep what no ack has carried for the session's next one.

        Idempotent. Takes the place of ``scope.end()``.
        """
        if self._closed:
            return
        self._closed = True
        self.scope.end()
        received = self._received
        if received is None or self.scope.silent:
            return
        key = _session(received) if isinstance(received, Accepted) else None
        if key is not None:
            window = self.scope.window
            self._node.pending.put(key, Batch(self.scope.take_ups()), None if window is self._told else window)


def _session(received: Accepted) -> SessionKey | None:
    return session_key(received.domain, received.state)


def _base_missing(received: Run) -> bool:
    if received.reason is NackReason.ROOT:
        return received.kind is not FrameKind.FULL
    return received.reason is NackReason.UNKNOWN_BASE


def _newer(one: Window | None, other: Window | None) -> Window | None:
    return one if one is not None and one.newer_than(other) else other


def _uncached(headers: Headers) -> bool:
    """Whether the response says that no shared cache keeps it. ``private="a-field"`` does not say so."""
    for name, value in headers:
        if name.lower() == b"cache-control" and any(
            word.strip().lower() in (b"no-store", b"private") for word in value.split(b",")
        ):
            return True
    return False
