"""Up values that came too late for the ack of their own request, kept for the next ack of the same session.

An ack rides on the response head, so what a stream records after its head has no carrier of its own. Sums are counted
at most once: a batch that a final ack has shown already keeps that ack's event id, by which the caller knows it again.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Final, NamedTuple

from otelctx.context.scope import UpValue
from otelctx.context.state import State, Window

__all__ = ["Batch", "Pending", "SessionKey", "new_event", "session_key"]

_SESSIONS: Final = 4096
_BYTES: Final = 8 * 2**20
_BATCHES: Final = 4
# Measured on CPython 3.11 (64 bit): a session for which something waits, a batch of it, and a value, without texts.
_SESSION_BYTES: Final = 380
_BATCH_BYTES: Final = 290
_UP_BYTES: Final = 125

SessionKey = tuple[str | bytes, ...]
# Whoever a session is of: where two have made up the same id, neither hears what the other has used.
_OWNERS: Final = ("tenant.id", "user.id")


def session_key(domain: str, state: State) -> SessionKey | None:
    """The session that ``state`` is of, in its trust domain, for its tenant and its user; ``None`` if it is of none."""
    session = state.session_id
    if session is None:
        return None
    owners = (state.entry(name) for name in _OWNERS)
    return domain, session, *(b"" if owner is None else owner.leaf for owner in owners)


class Batch(NamedTuple):
    """What one ack carries. ``event`` is 0 without sums; ``shown``: a final ack has carried it once."""

    ups: Mapping[str, UpValue]
    event: int = 0
    shown: bool = False


def new_event(ups: Mapping[str, UpValue]) -> int:
    """A random id for an ack that carries ``ups``, or 0 if there is no sum among them."""
    if ups and any(up.rule == "sum" for up in ups.values()):
        return secrets.randbits(64) or 1
    return 0


class _Waiting:
    __slots__ = ("batches", "bytes", "window")

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.bytes = 0  # as they were counted last
        self.window: Window | None = None

    def weigh(self, key: SessionKey) -> int:
        """By how much it has become heavier since it was counted last."""
        before = self.bytes
        self.bytes = _SESSION_BYTES + sum(map(len, key)) + sum(_cost(batch.ups) for batch in self.batches)
        return self.bytes - before


def _cost(ups: Mapping[str, UpValue]) -> int:
    texts = (up.value for up in ups.values() if isinstance(up.value, str | bytes))
    return _BATCH_BYTES + _UP_BYTES * len(ups) + sum(map(len, ups)) + sum(map(len, texts))


class Pending:
    """At most four batches a session, and so many sessions and bytes of memory of them, least recently used first. Safe
    to use from any thread."""

    __slots__ = ("_budget", "_bytes", "_limit", "_lock", "_sessions")

    def __init__(self, sessions: int = _SESSIONS, budget: int = _BYTES) -> None:
        self._limit = sessions
        self._budget = budget
        self._bytes = 0
        self._lock = Lock()
        self._sessions: OrderedDict[SessionKey, _Waiting] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def bytes(self) -> int:
        """Of memory, estimated."""
        return self._bytes

    def waits(self, key: SessionKey) -> bool:
        """Whether anything waits for the session. Mostly nothing waits for any, and no lock is needed to know that."""
        sessions = self._sessions
        return bool(sessions) and key in sessions

    def put(self, key: SessionKey, batch: Batch, window: Window | None = None) -> None:
        """Keep ``batch`` and the newest ``window``; the oldest batch over four is given up."""
        if not batch.ups and window is None:
            return
        with self._lock:
            waiting = self._sessions.setdefault(key, _Waiting())
            self._sessions.move_to_end(key)
            if batch.ups:
                waiting.batches.append(batch)
                del waiting.batches[:-_BATCHES]
            if window is not None and window.newer_than(waiting.window):
                waiting.window = window
            self._bytes += waiting.weigh(key)
            while self._sessions and (len(self._sessions) > self._limit or self._bytes > self._budget):
                _, gone = self._sessions.popitem(last=False)
                self._bytes -= gone.bytes

    def take(self, key: SessionKey, fresh: Mapping[str, UpValue]) -> tuple[Batch, Window | None]:
        """What the next ack carries: the oldest batch that was shown before, alone, else ``fresh`` joined with what
        waits.

        Batches that were shown never join others, or the caller could not tell that it has counted them. They go
        first, and ``fresh`` waits one ack longer: the other way round, a session whose every answer has values of its
        own would never deliver them.
        """
        if not self.waits(key):
            return Batch(fresh, new_event(fresh)), None
        with self._lock:
            waiting = self._sessions.get(key)
            if waiting is None:
                return Batch(fresh, new_event(fresh)), None
            batch = self._next(waiting, fresh)
            window, waiting.window = waiting.window, None
            if waiting.batches:
                self._bytes += waiting.weigh(key)
            else:
                self._bytes -= self._sessions.pop(key).bytes
            return batch, window

    def _next(self, waiting: _Waiting, fresh: Mapping[str, UpValue]) -> Batch:
        hidden = [batch for batch in waiting.batches if not batch.shown]
        joined: dict[str, UpValue] = {}
        for ups in (*(batch.ups for batch in hidden), fresh):
            for name, up in ups.items():
                joined[name] = up.joined(joined.get(name))
        shown = [batch for batch in waiting.batches if batch.shown]
        if not shown:
            waiting.batches = []
            return Batch(joined, new_event(joined))
        waiting.batches = [*shown[1:], *([Batch(joined)] if joined else [])]
        return shown[0]
