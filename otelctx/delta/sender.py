"""The sending side of one link, sans I/O: which frame to send to an origin, and what its reply teaches.

All that a sender knows of an origin it has learned from acks that echo the root of the exchange they answer. Silence
never removes information: a link that stops acking is sent more, not less.

    UNKNOWN     fewer than three acks in a row                 FULL
    AWARE       the origin acks                                REF, DELTA or FULL, whichever it can read and is smallest
    MIXED       it acks on some paths only                     per path as AWARE or as UNKNOWN
    FULL_ONLY   it kept losing bases; ten minutes              FULL
    W3C_ONLY    our header is too much for it; ten minutes     none; baggage unless that is too much as well

Theory of operation
    A reply is first reduced to one :class:`Event`, by its status, its ack and whether the frame was compact. Three
    tables say the rest: ``SENDS``, what a state sends; ``TRANSITIONS``, what an event does in a state, where a pair
    that is missing changes nothing; ``RESENDS``, what is to be repeated. Times, which are all in ``limits``, lead back
    by ``AFTER_PENALTY``.

    What an exchange says of the *state* is only believed if no transition came between its beginning and its end (its
    ``epoch`` is still the link's): ten requests in flight that all report the same trouble are one trouble. What it
    says of *bases* is true at any time, for they are addressed by content.

    Acks are counted in a row for the link and for each path, since a path may be served by somebody else. Silence on
    one path therefore costs that path alone (MIXED) and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal

from otelctx.context.state import State
from otelctx.delta.held import HeldBase, HeldBases
from otelctx.delta.limits import BASE_BYTES, Limits
from otelctx.delta.links import Answerer, BootIds, NackBudget, Paths, TableRevisions
from otelctx.delta.messages import Ack, AckKind, Frame, FrameKind, Held, NackReason, delta, full, ref, size
from otelctx.semconv import TABLE_REVISION

__all__ = ["BaggageMode", "LinkState", "Offer", "Reply", "Sender", "Verdict"]

BaggageMode = Literal["until_ack", "always", "never"]


class _Hashed(Enum):
    """Its members are keys of the tables: each is only itself, so there is no need to hash its name each time."""

    __hash__ = object.__hash__


class LinkState(_Hashed):
    UNKNOWN = auto()
    AWARE = auto()
    MIXED = auto()
    FULL_ONLY = auto()
    W3C_ONLY = auto()


class Event(_Hashed):
    """What a reply says about the link."""

    ACKED = auto()
    SILENT = auto()  # 2xx without an ack, not GET or HEAD
    NO_EVIDENCE = auto()  # a 502, 429, 304 or redirect without an ack says nothing
    BASE_LOST = auto()  # 412 to a REF or DELTA before the app ran: by its NACK, or as nothing else can be meant
    BASE_LOST_AGAIN = auto()  # the second within twenty such frames
    NACKED_ROOT = auto()  # the app ran; the origin computes another root, or the frame is over its limits
    NACKED_TABLE = auto()  # the app ran; the origin has an older table
    NACKED_BASE = auto()  # the app ran without the base, as it was configured to
    HEADER_REFUSED = auto()  # 431 or 494: the header is too large for something on the way


class Verdict(Enum):
    """What the shell does next with this exchange."""

    DONE = auto()
    RESEND_FULL = auto()
    RESEND_PLAIN = auto()  # without any header of ours


@dataclass(frozen=True, slots=True)
class Sends:
    frames: bool
    compact: bool
    baggage: bool


SENDS: Final[Mapping[LinkState, Sends]] = {
    LinkState.UNKNOWN: Sends(frames=True, compact=False, baggage=True),
    LinkState.AWARE: Sends(frames=True, compact=True, baggage=False),
    LinkState.MIXED: Sends(frames=True, compact=True, baggage=False),  # where the path is aware, else as UNKNOWN
    LinkState.FULL_ONLY: Sends(frames=True, compact=False, baggage=False),
    LinkState.W3C_ONLY: Sends(frames=False, compact=False, baggage=True),
}

_LINK_BYTES: Final = 2500  # measured on CPython 3.11 (64 bit): a link that knows nothing yet

_U, _A, _M, _F, _W = LinkState
TRANSITIONS: Final[Mapping[tuple[LinkState, Event], LinkState]] = {
    # ACKED moves UNKNOWN to AWARE only at the third ack in a row; see Sender._count.
    (_U, Event.ACKED): _A,
    (_A, Event.SILENT): _M,
    **{(state, event): _F for state in (_U, _A, _M) for event in (Event.NACKED_ROOT, Event.BASE_LOST_AGAIN)},
    **{(state, Event.HEADER_REFUSED): _W for state in (_U, _A, _M, _F)},
}
# Where a state returns to when its time is over.
AFTER_PENALTY: Final[Mapping[LinkState, LinkState]] = {_M: _A, _F: _U, _W: _U}
# What is sent once more, if the body can be. A NACK on any other status means that the app ran: never again.
RESENDS: Final[Mapping[Event, Verdict]] = {
    Event.BASE_LOST: Verdict.RESEND_FULL,
    Event.HEADER_REFUSED: Verdict.RESEND_PLAIN,
}
_TOO_LARGE: Final = (431, 494)
_BASE_LOST: Final = frozenset((Event.BASE_LOST, Event.NACKED_BASE))
_APP_RAN_WITHOUT: Final = frozenset((Event.SILENT, Event.NACKED_BASE, Event.NACKED_ROOT, Event.NACKED_TABLE))


@dataclass(slots=True)  # not frozen, which would make every exchange of a changed state pay for it
class Offer:
    """What to send in one exchange. ``frame`` is ``None`` where no header of ours goes; ``baggage`` says whether our
    public keys go into W3C baggage. The rest is for :meth:`Sender.close`."""

    frame: Frame | None
    baggage: bool
    state: State
    path: str
    began: float
    epoch: int

    @property
    def compact(self) -> bool:
        return self.frame is not None and self.frame.kind is not FrameKind.FULL


@dataclass(slots=True)
class Reply:
    """What came back. ``ack`` has been verified; ``replayable``: the body can be sent again; ``safe``: GET or HEAD;
    ``idempotent``: safe, or with an ``Idempotency-Key`` and no ``If-*`` header."""

    status: int
    ack: Ack | None
    replayable: bool
    safe: bool
    idempotent: bool


class Sender:
    """One link. Not thread-safe by itself: its shell holds a lock. Times are monotonic seconds.

    ``changes`` counts what may make the next offer, or the meaning of the next ack, another one than the last, apart
    from what a base says of itself; see :meth:`repeats`.
    """

    __slots__ = (
        "_acks",
        "_baggage",
        "_bare_until",
        "_boots",
        "_epoch",
        "_held",
        "_limits",
        "_nacks",
        "_paths",
        "_tables",
        "_until",
        "changes",
        "state",
    )

    def __init__(
        self,
        limits: Limits,
        *,
        baggage: BaggageMode = "until_ack",
        w3c_only: bool = False,
        table: int = TABLE_REVISION,
    ) -> None:
        """``w3c_only``: no frame is ever sent; ``table`` is the newest revision of the static table that we know."""
        self._limits = limits
        self._baggage = baggage
        self.state = LinkState.W3C_ONLY if w3c_only else LinkState.UNKNOWN
        self._until = float("inf")
        self._epoch = 0
        self.changes = 0
        self._acks = 0
        self._bare_until = float("-inf")  # so long our baggage is too much for the origin, too
        self._paths = Paths(limits)
        self._held = HeldBases(limits)
        self._boots = BootIds(limits)
        self._nacks = NackBudget(limits)
        self._tables = TableRevisions(limits, table)

    @property
    def bytes(self) -> int:
        """Memory that this link takes, estimated: its bases and its paths."""
        return _LINK_BYTES + self._held.bytes + self._paths.bytes

    # before sending

    def offer(self, state: State, *, path: str, safe: bool, must_be_full: bool, now: float) -> Offer:
        """The frame for ``state`` on this link. ``must_be_full``: an attempt after the first, a body that can't be sent
        again, a handshake: everything where a refusal could not be repaired."""
        self._expire(now)
        sends = SENDS[self.state]
        acks = self._paths.acks(path)
        aware = self.state is not LinkState.MIXED or acks >= self._limits.acks_until_aware
        baggage = self._baggage == "always" or (self._baggage == "until_ack" and (sends.baggage or not aware))
        baggage = baggage and now >= self._bare_until
        frame = None
        if sends.frames and state:
            may = sends.compact and aware and not must_be_full and not (safe and acks == 0)
            frame = (self._compact(state, now) if may else None) or full(state, self._tables.current(now))
            if frame.kind is not FrameKind.FULL:
                self._nacks.sent()
        return Offer(frame, baggage, state, path, now, self._epoch)

    def _compact(self, state: State, now: float) -> Frame | None:
        base = self._held.best(state, shared_only=self._boots.balanced(now), now=now)
        if base is None:
            return None
        if base.root == state.root:
            return ref(state, self._tables.current(now))
        frame = delta(base, state, self._tables.current(now))
        cost = size(frame.put) + sum(2 + len(name) for name in frame.delete) + 2 + BASE_BYTES
        return frame if cost < size(state.entries()) else None

    # after the reply

    def close(self, offer: Offer, reply: Reply, now: float) -> tuple[Verdict, bool]:
        """Learn from a reply. Returns what to do next, and whether context was lost: a compact frame went to an origin
        that did not read it, and the app there ran without."""
        if offer.frame is None:
            return self._close_plain(offer, reply, now), False
        ack = reply.ack
        if ack is not None and ack.root != offer.frame.root[:BASE_BYTES]:
            ack = None  # of another exchange: a cache or a confused proxy
        event = _event(offer, reply, ack)
        if ack is not None:
            self._note(offer, ack, now)
        verdict = RESENDS.get(event, Verdict.DONE) if reply.replayable else Verdict.DONE
        lost = offer.compact and event in _APP_RAN_WITHOUT
        if event in _BASE_LOST:
            self._held.drop(offer.state.session_id)
            if self._nacks.spent(self._boots.switch(offer.began)):
                event = Event.BASE_LOST_AGAIN
        if offer.epoch == self._epoch:
            self._learn(offer.path, event, now)
        elif event is Event.SILENT:  # out of date as to the state; but that path did not understand
            self._paths.silent(offer.path)
        return verdict, lost

    def _close_plain(self, offer: Offer, reply: Reply, now: float) -> Verdict:
        """Of an exchange without a frame one thing is to be learned: whether our baggage alone is too large. That holds
        for ten minutes, or for what is left of them."""
        if not offer.baggage or reply.status not in _TOO_LARGE:
            return Verdict.DONE
        if offer.epoch == self._epoch:
            self._bare_until = min(self._until, now + self._limits.penalty)
        return Verdict.RESEND_PLAIN if reply.replayable else Verdict.DONE

    def failed(self, offer: Offer) -> None:
        """No reply at all: nothing is learned."""

    def repeats(self, offer: Offer, safe: bool, now: float) -> HeldBase | None:
        """The base by whose word ``offer`` can be repeated unasked, and the ack that has just come to it be taken as
        read when it comes again: until ``base.until``, as long as :attr:`changes` stays as it is. Of each repetition
        :meth:`repeated` must be told.

        ``None`` if it hangs on more than that: on a path that is not known well enough, or that is read with GET.
        """
        frame = offer.frame
        if self.state is not LinkState.AWARE or frame is None or frame.kind is not FrameKind.REF:
            return None
        if safe or offer.baggage or not self._paths.known(offer.path):
            return None
        if frame.table != self._tables.current(now):
            return None
        base = self._held.best(offer.state, shared_only=self._boots.balanced(now), now=now)
        return base if base is not None and base.root == frame.root else None

    def forget(self) -> None:
        """The link is given up: what it knows of bases goes now, whoever still has a reference to it."""
        self._held = HeldBases(self._limits)
        self.changes += 1

    def repeated(self) -> None:
        """An offer has been repeated. May be called without the lock: to lose count of one is harmless."""
        self._nacks.sent()

    def _note(self, offer: Offer, ack: Ack, now: float) -> None:
        """Which process answered, how old it is, and what it holds."""
        table = self._tables.current(now)
        self._tables.seen(ack.table, now)
        self.changes += self._tables.current(now) != table
        answerer = self._boots.seen(ack.boot_id, began=offer.began, now=now)
        if answerer is Answerer.OTHER:
            self.changes += 1
            self._held.drop_process()
        elif answerer is Answerer.EARLIER and ack.held is Held.PROCESS:
            return
        if ack.kind is AckKind.ACK and ack.held is not Held.NONE:
            self._held.keep(offer.state, ack.held, now)

    def _learn(self, path: str, event: Event, now: float) -> None:
        self._count(path, event)
        target = TRANSITIONS.get((self.state, event))
        if target is not None and (event is not Event.ACKED or self._acks >= self._limits.acks_until_aware):
            self._move(target, now)
        elif self.state is LinkState.MIXED and event is Event.SILENT:
            self._until = now + self._limits.penalty  # an incident: the ten minutes begin anew

    def _count(self, path: str, event: Event) -> None:
        if event is Event.ACKED:
            self._acks += 1
            self._paths.acked(path)
        elif event is Event.SILENT:
            self._acks = 0
            self._paths.silent(path)

    def _move(self, target: LinkState, now: float) -> None:
        self.state = target
        self._epoch += 1
        self.changes += 1
        self._acks = 0
        self._bare_until = float("-inf")
        self._until = now + self._limits.penalty if target in AFTER_PENALTY else float("inf")

    def _expire(self, now: float) -> None:
        if now >= self._until:
            self._move(AFTER_PENALTY[self.state], now)


def _event(offer: Offer, reply: Reply, ack: Ack | None) -> Event:
    if ack is None:
        return _unacked(offer, reply)
    if ack.kind is AckKind.ACK:
        return Event.ACKED
    if reply.status == 412 and offer.compact:
        return Event.BASE_LOST
    if ack.reason is NackReason.UNKNOWN_BASE and not offer.compact:
        return Event.NO_EVIDENCE  # a FULL needs no base: whatever says so is confused
    return _NACKED.get(ack.reason, Event.NO_EVIDENCE)


def _unacked(offer: Offer, reply: Reply) -> Event:
    if reply.status in _TOO_LARGE:
        return Event.HEADER_REFUSED
    if reply.status == 412 and offer.compact and reply.idempotent:
        return Event.BASE_LOST  # the request has no precondition that could have failed: the ack was stripped
    return Event.SILENT if 200 <= reply.status < 300 and not reply.safe else Event.NO_EVIDENCE


_NACKED: Final[Mapping[NackReason, Event]] = {
    NackReason.UNKNOWN_BASE: Event.NACKED_BASE,
    NackReason.ROOT: Event.NACKED_ROOT,
    NackReason.LIMIT: Event.NACKED_ROOT,
    NackReason.TABLE: Event.NACKED_TABLE,
}
