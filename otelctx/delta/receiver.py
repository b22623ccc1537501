"""The receiving side, sans I/O: from header lines to a state, or to what must be answered instead.

Nothing is raised; an outcome is returned:

    Accepted    the app runs with the sender's state
    NeedBase    a REF or DELTA whose base is not in this process: the shell may ask a shared store and resume
    Refuse      the app must not run: 412 and a NACK, so that the sender repeats with FULL
    Run         the app runs without context, flagged incomplete, and a NACK goes onto its own response
    Ignored     the app runs without context and there is no answer: a stranger learns nothing

Theory of operation
    Checks run in this order, each cheaper than the next, and the first that fails decides: one header line, length,
    syntax, decoded length, MAC and trust, parse, entry count, each key and value, base, root. Up to trust a failure is
    a stranger's, and so is a frame that can't be parsed: there is no answer that could serve as an oracle. From there
    on it is a friend's who knows less than he thinks, and he is told.

    The base of a DELTA is looked up by eight bytes of its root; nothing depends on them being unique, for the root of
    the result is compared in full. So any number of senders may share a worker, frames may be lost, repeated or
    overtake one another, and a state that is accepted is the one that was sent.

    A FULL stands alone and therefore never leads to Refuse, whatever is wrong with it: to repeat it would not help. A
    frame that failed is never half applied, since a partial state would be signed again as a whole one further on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from otelctx.context.state import EMPTY, State
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import decode_frame, from_header, split_mac
from otelctx.delta.messages import Frame, FrameKind, Held, NackReason
from otelctx.errors import ContextLimitExceeded, ProtocolError
from otelctx.semconv import TABLE_REVISION

__all__ = ["Accepted", "Ignored", "NeedBase", "Outcome", "Read", "Receiver", "Refuse", "Run", "Verify"]

# (body, mac) → trust domain, or None if the MAC is not valid. ``mac`` is key id and 16 bytes.
Verify = Callable[[bytes, bytes], str | None]

UNSIGNED: Final = ""  # the trust domain of frames without a MAC


@dataclass(frozen=True, slots=True)
class Read:
    """A frame of somebody who may send one; whether its base is held is not known yet."""

    frame: Frame
    domain: str
    signed: bool
    cost: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """``held`` says whether the state may serve as a base from now on; ``cost`` is the length of the header line."""

    kind: FrameKind
    state: State
    domain: str
    signed: bool
    held: Held
    cost: int


@dataclass(frozen=True, slots=True)
class NeedBase:
    """``root`` (16 bytes of a REF, 8 of a DELTA's base) names the state that is missing."""

    frame: Frame
    root: bytes
    domain: str
    signed: bool
    cost: int


@dataclass(frozen=True, slots=True)
class Refuse:
    reason: NackReason
    kind: FrameKind
    root: bytes
    domain: str
    signed: bool
    cost: int


@dataclass(frozen=True, slots=True)
class Run:
    reason: NackReason
    kind: FrameKind
    root: bytes
    domain: str
    signed: bool
    cost: int


@dataclass(frozen=True, slots=True)
class Ignored:
    """``reason`` is a short stable word: malformed, oversized, repeated, mac, untrusted."""

    reason: str
    cost: int


Outcome = Accepted | NeedBase | Refuse | Run | Ignored


class Receiver:
    """Opens the frames that reach one process. Not thread-safe by itself: its shell holds a lock."""

    __slots__ = ("_bases", "_on_unknown_base")

    def __init__(self, bases: BaseCache, *, on_unknown_base: Literal["resync", "proceed"] = "resync") -> None:
        self._bases = bases
        self._on_unknown_base = on_unknown_base

    def open(self, lines: Sequence[bytes | str], *, client: str, trusted: bool, verify: Verify) -> Outcome:
        """``lines`` are the values of all ``otelctx`` header lines, at least one; ``trusted`` says whether a frame
        without MAC is believed from ``client``."""
        read = self.read(lines, trusted=trusted, verify=verify)
        return read if isinstance(read, Ignored) else self.accept(read, client=client)

    def read(self, lines: Sequence[bytes | str], *, trusted: bool, verify: Verify) -> Read | Ignored:
        """The first half of :meth:`open`, up to parsing: what it returns depends on nothing but its arguments."""
        cost = sum(map(len, lines))
        if len(lines) != 1:
            return Ignored("repeated", cost)
        try:
            data = from_header(lines[0])
            body, mac = split_mac(data)
            if mac is None:
                if not trusted:
                    return Ignored("untrusted", cost)
                domain: str | None = UNSIGNED
            else:
                domain = verify(body, mac)
            if domain is None:
                return Ignored("mac", cost)
            frame = decode_frame(body)
        except ProtocolError as exc:
            return Ignored(exc.reason, cost)
        return Read(frame, domain, mac is not None, cost)

    def resume(self, need: NeedBase, base: State | None, *, client: str) -> Accepted | Refuse | Run:
        """Go on after :class:`NeedBase`, with what the shared store has, or ``None``."""
        if base is None or base.root[: len(need.root)] != need.root:
            return self._missing(need)
        return self._apply(need.frame, base, client, need.domain, need.signed, need.cost)

    def give_up(self, need: NeedBase) -> Refuse | Run:
        """There is no shared store: refuse or proceed as configured."""
        return self._missing(need)

    def accept(self, read: Read, *, client: str) -> Outcome:
        """The second half of :meth:`open`: from the bases that are held now to the state."""
        frame, domain, signed, cost = read.frame, read.domain, read.signed, read.cost
        if frame.table > TABLE_REVISION:
            return self._unreadable(frame, NackReason.TABLE, domain, signed, cost)
        if frame.kind is FrameKind.FULL:
            return self._apply(frame, EMPTY, client, domain, signed, cost)
        wanted = frame.root if frame.kind is FrameKind.REF else frame.base
        base = self._bases.get(domain, wanted)
        if base is None:
            return NeedBase(frame, wanted, domain, signed, cost)
        return self._apply(frame, base, client, domain, signed, cost)

    def _apply(
        self, frame: Frame, base: State, client: str, domain: str, signed: bool, cost: int
    ) -> Accepted | Refuse | Run:
        try:
            state = base.apply(frame.put, frame.delete) if frame.put or frame.delete else base
        except ContextLimitExceeded:
            return Run(NackReason.LIMIT, frame.kind, frame.root, domain, signed, cost)
        if state.root != frame.root:
            if frame.kind is FrameKind.FULL:
                return Run(NackReason.ROOT, frame.kind, frame.root, domain, signed, cost)
            return self._unreadable(frame, NackReason.ROOT, domain, signed, cost)
        held = Held.PROCESS if self._bases.put(domain, state, client) else Held.NONE
        return Accepted(frame.kind, state, domain, signed, held, cost)

    def _missing(self, need: NeedBase) -> Refuse | Run:
        return self._unreadable(need.frame, NackReason.UNKNOWN_BASE, need.domain, need.signed, need.cost)

    def _unreadable(self, frame: Frame, reason: NackReason, domain: str, signed: bool, cost: int) -> Refuse | Run:
        may_refuse = frame.kind is not FrameKind.FULL and self._on_unknown_base == "resync"
        outcome = Refuse if may_refuse and reason is not NackReason.TABLE else Run
        return outcome(reason, frame.kind, frame.root, domain, signed, cost)
