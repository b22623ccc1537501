"""The calling side of one exchange: which headers of ours a request gets, and what its reply brings back. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final

from opentelemetry.context import Context

from otelctx.context import current
from otelctx.context.scope import Scope
from otelctx.context.state import EMPTY, State
from otelctx.delta import baggage, sender, timeout
from otelctx.delta.held import HeldBase
from otelctx.delta.limits import BASE_BYTES
from otelctx.delta.messages import Ack, AckKind, Frame, FrameKind
from otelctx.delta.sender import Offer, Reply
from otelctx.errors import ContextLimitExceeded
from otelctx.exchange.known import SHORT, Era, Errand, Standing, keep
from otelctx.exchange.links import Link
from otelctx.exchange.node import Node
from otelctx.exchange.uptake import take_over
from otelctx.policy.egress import view
from otelctx.semconv import HEADER

__all__ = ["ClientExchange", "Verdict", "begin"]

_LOST: Final = "no_ack"
_SAFE: Final = ("GET", "HEAD")
_NONE: Final[Mapping[str, str]] = {}
_KINDS: Final = {kind: kind.name.lower() for kind in FrameKind}
_ACK_KINDS: Final = {kind: kind.name.lower() for kind in AckKind}
_ACK: Final = _ACK_KINDS[AckKind.ACK]


class Verdict(Enum):
    """What the shell does with the response: hand it on, or drop it and send the request again with new headers."""

    DONE = auto()
    RESEND = auto()


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
    bound = current.current_binding(context)
    allowed = node.egress.allows(host, port)
    state, lost = EMPTY, None
    if allowed and bound is not None:
        try:
            state = bound.snapshot()
        except ContextLimitExceeded:
            # Each value fitted where it was set; the overlays of this branch beside them don't.
            lost = "too_large"
    scope = None if bound is None else bound.scope
    errand = (state.root, scheme, host, port, path, method)
    full = body is None or attempt > 0 or body > node.limits.body_bytes or method == "CONNECT"
    standing = None if full else node.era.standing.get(errand)
    if standing is not None and standing.holds(node.registry, now, unix):
        return ClientExchange(node, errand, body, idempotent, scope, state, allowed, now, standing)
    exchange = ClientExchange(node, errand, body, idempotent, scope, state, allowed, now, None)
    exchange.prepare(unix, full)
    exchange.lost = lost
    return exchange


class ClientExchange:
    """One request to one origin, and its one possible repetition.

    - ``allowed``: whether context of ours may go to this origin
    - ``headers``: the ``otelctx`` line, or nothing, not to be written to; ``members``: ours for the ``baggage``
      header, percent-encoded
    - ``timeout``: the value for ``otelctx-timeout-ms``, if there is a deadline and it may go to this origin
    - ``kind``: ``full``, ``delta`` or ``ref`` of the frame that goes out, ``None`` without one
    - ``lost``: why context will not arrive, or after :meth:`close` did not; a short word
    - after :meth:`close`: ``late`` (the scope had ended), ``ack_kind`` and
      ``ack_size`` (characters) of the ack that came
    """

    __slots__ = (
        "_began",
        "_body",
        "_errand",
        "_frame",
        "_idempotent",
        "_link",
        "_node",
        "_offer",
        "_resent",
        "_scope",
        "_standing",
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
        errand: Errand,
        body: int | None,
        idempotent: bool,
        scope: Scope | None,
        state: State,
        allowed: bool,
        began: float,
        standing: Standing | None,
    ) -> None:
        """With ``standing`` it sends what went out the last time, which the link would say again."""
        self._node = node
        self._errand = errand
        self._body = body
        self._idempotent = idempotent
        self._scope = scope
        self._state = state  # before the destination's view is taken
        self._began = began
        self._resent = False
        self._offer: Offer | None = None
        self._standing = standing
        self._link: Link | None
        self._frame: Frame | None
        self.headers: list[tuple[str, str]]
        self.timeout: str | None = None
        if standing is None:
            self._link, self._frame, self.headers = None, None, []
        else:
            self._link, self._frame, self.headers = standing.link, standing.frame, standing.headers
            standing.link.sender.repeated()
            if scope is not None and scope.deadline is not None:
                self._limit(began)
        self.allowed = allowed
        self.members: Mapping[str, str] = _NONE
        self.lost: str | None = None
        self.late = False
        self.ack_kind: str | None = None
        self.ack_size = 0

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

    # before sending

    def prepare(self, unix: float, must_be_full: bool) -> None:
        """Ask the link what to send."""
        state = view(self._state, self._node.registry)
        if not state:
            if self.allowed:
                self._limit(self._began)
            return
        _, scheme, host, port, _, _ = self._errand
        self._link = self._node.links.get((scheme, host, port))
        self._ask(self._link, state, self._began, unix, must_be_full)

    def _ask(self, link: Link, state: State, now: float, unix: float, must_be_full: bool) -> None:
        *_, path, method = self._errand
        with link.lock:
            offer = link.sender.offer(state, path=path, safe=method in _SAFE, must_be_full=must_be_full, now=now)
        self._offer, self._frame = offer, offer.frame
        self.members = baggage.members(state, self._node.registry) if offer.baggage else _NONE
        self.headers, self.timeout = [], None
        if offer.frame is not None:  # none: this origin has said that headers are too large
            self.headers = [(HEADER, self._node.wire(offer.frame, unix))]
            self._limit(now)

    def _limit(self, now: float) -> None:
        scope = self._scope
        if scope is not None and scope.deadline is not None:
            self.timeout = timeout.encode(scope.deadline - now)

    # after sending

    def close(self, status: int, ack_lines: Sequence[bytes | str], now: float, unix: float) -> Verdict:
        """The response head is here; ``ack_lines`` are the values of its ``otelctx-ack`` lines. Never raises.

        What came back is in the scope that was current at the beginning when this returns. ``RESEND`` comes at most
        once; ``headers``, ``members`` and ``kind`` are then those of the second attempt.
        """
        standing, era = self._standing, self._node.era
        if standing is not None and len(ack_lines) == 1 and standing.answers(ack_lines[0], era, now):
            self.ack_kind, self.ack_size = _ACK, standing.size
            return Verdict.DONE
        self.ack_kind, self.ack_size = None, 0  # that of the first attempt is not the repetition's
        link, offer = self._link, self._offered()
        if offer is None or link is None or not (self.headers or self.members):
            return Verdict.DONE  # nothing of ours went out: what came says nothing of it
        _, scheme, host, port, _, method = self._errand
        safe = method in _SAFE
        ack = self._read(ack_lines, unix)
        replayable = self._body is not None and not self._resent
        with link.lock:
            reply = Reply(status, ack, replayable, safe, self._idempotent)
            verdict, lost = link.sender.close(offer, reply, now)
            stands = standing is not None and standing.stands(era, self._node.registry, now, unix)
            base = None if ack is None or stands else link.sender.repeats(offer, safe, now)
        if lost:
            self.lost = _LOST
        self._node.links.weigh((scheme, host, port), link)
        if ack is not None and ack.kind is AckKind.ACK:
            self._merge(ack)
            news = bool(ack.ups) or ack.window is not None
            line = None if news else ack_lines[0]
            if stands and standing is not None:
                standing.hear(line, now)
            else:
                self._stand(era, offer, base, line, now, unix)
        if verdict is sender.Verdict.DONE or not replayable:
            return Verdict.DONE
        self._resent = True
        if verdict is sender.Verdict.RESEND_PLAIN:
            self._offer = self._frame = self.timeout = None
            self.headers, self.members = [], _NONE
        else:
            self._ask(link, offer.state, now, unix, must_be_full=True)
        return Verdict.RESEND

    def _offered(self) -> Offer | None:
        """What the link has offered, or would have if it had been asked."""
        standing = self._standing
        if self._offer is None and standing is not None:
            state = view(self._state, self._node.registry)
            if state.root == standing.frame.root:  # else a key of it has been declared local meanwhile
                self._offer = standing.offer(state, self._errand[4], self._began)
        return self._offer

    def _stand(
        self, era: Era, offer: Offer, base: HeldBase | None, line: bytes | str | None, now: float, unix: float
    ) -> None:
        """Know by heart what has gone out, if it can be repeated, and ``line``: its ack, if that brought no news."""
        node, link, frame = self._node, self._link, offer.frame
        if base is None or frame is None or link is None or not link.kept or len(offer.path) > SHORT:
            era.standing.pop(self._errand, None)
            return
        headers = [(HEADER, node.wire(frame, unix))]
        standing = Standing(era, link, base, frame, offer.epoch, node.registry.generation, headers, line, now, unix)
        keep(era.standing, self._errand, standing)

    def failed(self) -> None:
        """There was no response."""
        offer = self._offered()
        if offer is not None and self._link is not None:
            with self._link.lock:
                self._link.sender.failed(offer)

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
        if not take_over(self._node, scope, ack, session=self._state.session_id is not None):
            self.late = True
