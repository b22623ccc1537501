"""What this process knows by heart: the results of work that an unchanged session would have it do again.

Nothing in here decides anything. Each entry says on what it rests, and is used while all of that is as it was; else the
work is done, by the same code as the first time. What it can rest on:

    the settings, the keys and the process     an :class:`Era` ends with them, and everything in it
    the hour of a MAC                          ``since`` and ``until``, Unix time
    a base                                     its own word: ``Base.kept`` here, ``HeldBase.until`` of the other side's
    what a link has learned                    ``Sender.changes``
    which keys are declared                    ``KeyRegistry.generation``

The orders of recent use, by which bases and links are given up, and the times of the last ack, after which they expire,
are kept up to a second: an entry is good for no longer before the work is done in full and they are written again.
"""

from __future__ import annotations

from typing import Final, TypeVar

from otelctx.context.keys import KeyRegistry
from otelctx.context.state import State
from otelctx.delta.bases import Base
from otelctx.delta.held import HeldBase
from otelctx.delta.messages import Ack, Frame
from otelctx.delta.receiver import Accepted
from otelctx.delta.sender import Offer
from otelctx.exchange.links import Link
from otelctx.exchange.pending import SessionKey, session_key

__all__ = ["HOUR", "SHORT", "Client", "Era", "Errand", "Known", "Standing", "keep"]

HOUR: Final = 3600
SHORT: Final = 512  # characters of a frame or a path that is remembered
# Seconds for which an order of recent use or a time of last use may be out of date.
COARSE: Final = 1.0
_REMEMBERED: Final = 4096

K = TypeVar("K")
V = TypeVar("V")

# The client's address, if it is known, and whether it is believed without a MAC.
Client = tuple[str | None, bool]
# Root of the state, scheme, host, port, path and method.
Errand = tuple[bytes, str, str, int, str, str]


def keep(remembered: dict[K, V], key: K, value: V) -> V:
    """Remember what can be made again. When that is too much, all of it goes: cheaper than to know which."""
    if len(remembered) >= _REMEMBERED:
        remembered.clear()
    remembered[key] = value
    return value


class Era:
    """All that is known under one set of settings in one process; new settings and a fork begin another one.

    Who makes something takes the era first and the settings second, and keeps the result in that era. So what was made
    with old keys can't get into a new era, and no lock is needed: a look into a dict is one step of the interpreter.
    """

    __slots__ = ("_states", "acks", "clients", "known", "standing", "wires")

    def __init__(self) -> None:
        self._states = 0
        self.clients: dict[tuple[str | None, str | None], Client] = {}
        self.wires: dict[tuple[object, ...], str] = {}
        self.acks: dict[tuple[bytes | str, int], Ack] = {}
        self.known: dict[bytes | str, Known] = {}
        self.standing: dict[Errand, Standing] = {}

    def learn(self, line: bytes | str, known: Known, budget: int) -> None:
        """Know ``line`` by heart. What is known keeps states alive that the cache of bases may have dropped since: all
        of it goes when those could be ``budget`` bytes. Call it under one lock."""
        self._states += known.base.cost
        if self._states > budget:
            self.known.clear()
            self._states = known.base.cost
        keep(self.known, line, known)


class Known:
    """A signed REF line that was accepted at ``now`` (Unix time), and the ack that answers it if there is no news.

    ``session`` says whose session it is of.
    """

    __slots__ = ("_ack", "_answered", "_since", "_stale", "_until", "accepted", "base", "session", "touched")

    def __init__(self, accepted: Accepted, base: Base, now: float) -> None:
        hour = int(now) // HOUR
        self.accepted = accepted
        self.base = base
        self.session: SessionKey = session_key(accepted.domain, accepted.state) or ()  # without one no REF is accepted
        self._since, self._until = float(hour * HOUR), float((hour + 1) * HOUR)
        self.touch(now)
        self._ack: bytes | None = None
        self._answered: Era | None = None

    def fresh(self, now: float) -> bool:
        """Whether the line would be accepted again, and has been so a moment ago."""
        return self.base.kept and self.touched <= now < self._stale

    def holds(self, now: float) -> bool:
        """Whether the line would be accepted again, though its base has to be moved up in the order of use."""
        return self.base.kept and self._since <= now < self._until

    def answer(self, era: Era, now: float) -> bytes | None:
        """What answers it, if that is known and would be written so at ``now``: the response to a request of this hour
        may begin in another one."""
        return self._ack if self._answered is era and self._since <= now < self._until else None

    def answered(self, ack: bytes, era: Era, now: float) -> None:
        """It has been answered at ``now``, in ``era``, with ``ack``."""
        if self._since <= now < self._until:
            self._ack, self._answered = ack, era

    def touch(self, now: float) -> None:
        """The base has been moved up."""
        self.touched = now
        self._stale = min(now + COARSE, self._until)


class Standing:
    """The REF that goes out for one errand, and the line that acks it, as of ``now`` (monotonic) and ``unix`` time.

    ``base`` is what the other side holds; ``line`` its ack, or ``None`` if that carried news.
    """

    __slots__ = (
        "_changes",
        "_epoch",
        "_era",
        "_fresh",
        "_generation",
        "_since",
        "_until",
        "base",
        "frame",
        "headers",
        "line",
        "link",
        "size",
    )

    def __init__(
        self,
        era: Era,
        link: Link,
        base: HeldBase,
        frame: Frame,
        epoch: int,
        generation: int,
        headers: list[tuple[str, str]],
        line: bytes | str | None,
        now: float,
        unix: float,
    ) -> None:
        hour = int(unix) // HOUR
        self._era = era
        self.link = link
        self.base = base
        self.frame = frame
        self._epoch = epoch
        self._changes = link.sender.changes
        self._generation = generation
        self.headers = headers
        self.hear(line, now)
        self._since, self._until = float(hour * HOUR), float((hour + 1) * HOUR)

    def holds(self, registry: KeyRegistry, now: float, unix: float) -> bool:
        """Whether the sender would make the same offer again. It is looked up in the era of the moment."""
        return (
            self._changes == self.link.sender.changes
            and now < self.base.until
            and self._since <= unix < self._until
            and self._generation == registry.generation
        )

    def hear(self, line: bytes | str | None, now: float) -> None:
        """The ack has come, and the sender has been told."""
        self.line = line
        self.size = 0 if line is None else len(line)
        self._fresh = now + COARSE

    def stands(self, era: Era, registry: KeyRegistry, now: float, unix: float) -> bool:
        """Whether it is still right after the sender has been told of a reply."""
        return self._era is era and self.holds(registry, now, unix)

    def answers(self, line: bytes | str, era: Era, now: float) -> bool:
        """Whether ``line`` is the ack that came the last time, and would teach the sender nothing again. That time is
        never so long ago that its MAC could have become too old."""
        return (
            line == self.line
            and now < self._fresh
            and self._era is era
            and self._changes == self.link.sender.changes
            and now < self.base.until
        )

    def offer(self, state: State, path: str, began: float) -> Offer:
        """What the sender would have offered at ``began``, for its :meth:`~otelctx.delta.sender.Sender.close`."""
        return Offer(self.frame, False, state, path, began, self._epoch)
