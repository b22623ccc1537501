"""The calling side of one exchange: which headers of ours a request gets, and what its reply brings back. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from opentelemetry.context import Context

from otelctx.context import current
from otelctx.context.scope import Scope, UpValue
from otelctx.context.state import EMPTY, State
from otelctx.delta import baggage, sender, timeout
from otelctx.delta.limits import BASE_BYTES
from otelctx.delta.messages import Ack, AckKind, Frame, FrameKind
from otelctx.delta.sender import Offer, Reply
from otelctx.errors import ContextLimitExceeded
from otelctx.exchange.links import Link, Origin
from otelctx.exchange.node import Node
from otelctx.policy.egress import view
from otelctx.semconv import HEADER

__all__ = ["ClientExchange", "Verdict", "begin"]

_LOST: Final = "no_ack"
_SAFE: Final = frozenset(("GET", "HEAD"))
_KINDS: Final = {kind: kind.name.lower() for kind in FrameKind}
_ACK_KINDS: Final = {kind: kind.name.lower() for kind in AckKind}


class Verdict(Enum):
    """What the shell does with the response: hand it on, or drop it and send the request again with new headers."""

    DONE = auto()
    RESEND = auto()


@dataclass(slots=True)
class _Request:
    """What is the same for both attempts. ``body``: bytes of a body that can be sent again."""

    path: str
    safe: bool
    body: int | None
    idempotent: bool
    full: bool


def begin(
    node: Node,
    *,
    scheme: str,
    host: str,
    port: int,
    method: str,
    path: str,
    body: int | None,
    context: Context | None = None,
    attempt: int = 0,
    idempotent: bool = False,
    now: float,
    unix: float,
) -> ClientExchange:
    """Snapshot what is current in ``context`` and decide what of it goes to this origin. Never raises.

    - ``body``: length in bytes of a request body that can be sent a second time, ``None`` for a stream or a handshake
    - ``attempt``: how often this very request has been sent before
    - ``idempotent``: GET or HEAD or with an ``Idempotency-Key``, and without any ``If-*``: a bare 412 is not the
      application's
    - ``now`` is monotonic, ``unix`` Unix time, both in seconds
    """
    scope = current.current_scope(context)
    allowed = node.egress.allows(host, port)
    state, lost = EMPTY, None
    if allowed and scope is not None:
        try:
            state = view(current.snapshot(context), node.registry)
        except (
            ContextLimitExceeded
        ):  # each value fitted where it was set; the overlays of this branch beside them don't
            lost = "too_large"
    full = attempt > 0 or body is None or body > node.limits.body_bytes or method == "CONNECT"
    request = _Request(path, method in _SAFE, body, idempotent, full)
    exchange = ClientExchange(node, (scheme, host, port), request, scope, state, allowed, now, unix)
    exchange.lost = lost
    return exchange


class ClientExchange:
    """One request to one origin, and its one possible repetition.

    - ``allowed``: whether context of ours may go to this origin
    - ``headers``: the ``otelctx`` line, or nothing; ``members``: ours for the ``baggage`` header, percent-encoded
    - ``timeout``: the value for ``otelctx-timeout-ms``, if there is a deadline and it may go to this origin
    - ``kind``: ``full``, ``delta`` or ``ref`` of the frame that goes out, ``None`` without one
    - ``lost``: why context will not arrive, or after :meth:`close` did not; a short word
    - after :meth:`close`: ``late`` (the scope had ended), ``ack_kind`` and
      ``ack_size`` (characters) of the ack that came
    """

    __slots__ = (
        "_frame",
        "_link",
        "_node",
        "_offer",
        "_origin",
        "_request",
        "_resent",
        "_scope",
        "_state",
        "ack_kind",
        "ack_size",
        "allowed",
        "headers",
        "late",
        "lost",
        "members",
        "timeout",
    )

    def __init__(
        self,
        node: Node,
        origin: Origin,
        request: _Request,
        scope: Scope | None,
        state: State,
        allowed: bool,
        now: float,
        unix: float,
    ) -> None:
        self._node = node
        self._origin = origin
        self._request = request
        self._scope = scope
        self._state = state
        self._resent = False
        self.allowed = allowed
        self.lost: str | None = None
        self.late = False
        self.ack_kind: str | None = None
        self.ack_size = 0
        self._plain()
        self._link: Link | None = None
        if state:
            self._link = node.links.get(origin)
            self._prepare(self._link, request.full, now, unix)
        elif allowed and scope is not None:
            self._limit(scope, now)

    @property
    def kind(self) -> str | None:
        return None if self._frame is None else _KINDS[self._frame.kind]

    @property
    def size(self) -> int:
        """Characters of the ``otelctx`` line."""
        return len(self.headers[0][1]) if self.headers else 0

    @property
    def session_id(self) -> str | None:
        """The session of the caller, wherever the request goes."""
        return None if self._scope is None else self._scope.state.session_id

    def _plain(self) -> None:
        self._offer: Offer | None = None
        self._frame: Frame | None = None
        self.headers: list[tuple[str, str]] = []
        self.members: Mapping[str, str] = {}
        self.timeout: str | None = None

    def _limit(self, scope: Scope, now: float) -> None:
        if scope.deadline is not None:
            self.timeout = timeout.encode(scope.deadline - now)

    def _prepare(self, link: Link, full: bool, now: float, unix: float) -> None:
        request, state = self._request, self._state
        with link.lock:
            offer = link.sender.offer(state, path=request.path, safe=request.safe, must_be_full=full, now=now)
        self._offer, self._frame = offer, offer.frame
        self.headers = [] if offer.frame is None else [(HEADER, self._node.wire(offer.frame, unix))]
        self.members = baggage.members(state, self._node.registry) if offer.baggage else {}
        if offer.frame is not None and self._scope is not None:  # none: this origin has said that headers are too large
            self._limit(self._scope, now)

    # after sending

    def close(self, status: int, ack_lines: Sequence[bytes | str], now: float, unix: float) -> Verdict:
        """The response head is here; ``ack_lines`` are the values of its ``otelctx-ack`` lines. Never raises.

        What came back is in the scope that was current at the beginning when this returns. ``RESEND`` comes at most
        once; ``headers``, ``members`` and ``kind`` are then those of the second attempt.
        """
        offer, link, request = self._offer, self._link, self._request
        if offer is None or link is None or not (self.headers or self.members):
            return Verdict.DONE  # nothing of ours went out: what came says nothing of it
        ack = self._read(ack_lines, unix)
        replayable = request.body is not None and not self._resent
        reply = Reply(status, ack, replayable, request.safe, request.idempotent)
        with link.lock:
            verdict, lost = link.sender.close(offer, reply, now)
        if lost:
            self.lost = _LOST
        self._node.links.weigh(self._origin, link)
        if ack is not None and ack.kind is AckKind.ACK:
            self._merge(ack)
        if verdict is sender.Verdict.DONE or not replayable:
            return Verdict.DONE
        self._resent = True
        if verdict is sender.Verdict.RESEND_PLAIN:
            self._plain()
        else:
            self._prepare(link, True, now, unix)
        return Verdict.RESEND

    def failed(self) -> None:
        """There was no response."""
        if self._offer is not None and self._link is not None:
            with self._link.lock:
                self._link.sender.failed(self._offer)

    def _read(self, lines: Sequence[bytes | str], unix: float) -> Ack | None:
        """The ack, if it is one of this exchange."""
        frame = self._frame
        if frame is None or not lines:
            return None
        ack = self._node.read_ack(lines, unix)
        if ack is None or ack.root != frame.root[:BASE_BYTES]:
            return None
        self.ack_kind, self.ack_size = _ACK_KINDS[ack.kind], len(lines[0])
        return ack

    def _merge(self, ack: Ack) -> None:
        scope = self._scope
        if scope is None or not (ack.ups or ack.window):
            return
        if scope.ended:
            self.late = True
            return
        if ack.window is not None and self._state.session_id is not None:
            scope.report(ack.window)
        ups = self._believed(ack)
        if ups and not scope.merge_ups(ups):
            self.late = True

    def _believed(self, ack: Ack) -> dict[str, UpValue]:
        """Of the up values those that are declared here as such. Nothing of an ack that has been counted before."""
        if not ack.ups or (ack.event and not self._node.first_time(ack.event)):
            return {}
        ups: dict[str, UpValue] = {}
        for item in ack.ups:
            spec = self._node.registry.get(item.name)
            if spec is None or spec.rule is None or spec.kind is not item.kind:
                continue
            if spec.rule != "sum" or ack.event:  # a sum without an event id could be counted twice
                ups[item.name] = UpValue(spec.rule, item.value)
        return ups
