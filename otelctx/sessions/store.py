"""Sessions in memory: found by id, checked by owner, leased to one turn at a time.

A lease pins its session until it is released, or until its deadline, when the sweeper takes it back: a turn that never
ends must not keep a session for ever. What a reclaimed lease's holder does later is ignored.

The store belongs to one event loop. It keeps no clock of its own and does no telemetry: it calls ``on_lookup`` with
``hit`` or ``miss``, and returns what has expired.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from otelctx.errors import Overloaded, SessionBusy, SessionNotFound
from otelctx.sessions.arena import Arena
from otelctx.sessions.expiry import due, oldest_idle
from otelctx.sessions.record import SessionRecord
from otelctx.sessions.window import TokenWindow

__all__ = ["Lease", "Limits", "SessionStore"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds. ``window`` is the tokens each session may keep; ``sessions`` the number kept at once."""

    window: int
    sessions: int = 10_000
    idle: float = 3600.0
    wait: float = 30.0
    lease: float = 600.0


class Lease:
    """One turn's hold on a session. ``async with lease:`` or :meth:`release`, which may be called any number of
    times.
    """

    __slots__ = ("_store", "deadline", "record", "released")

    def __init__(self, store: SessionStore, record: SessionRecord, deadline: float) -> None:
        self._store = store
        self.record = record
        self.deadline = deadline
        self.released = False

    @property
    def window(self) -> TokenWindow:
        return self.record.window

    def release(self) -> None:
        """Give the session to the next waiter, or to nobody. Must be called on the store's event loop."""
        self._store._release(self)

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class SessionStore:
    """All sessions of one process."""

    def __init__(
        self,
        arena: Arena,
        limits: Limits,
        clock: Callable[[], float],
        on_lookup: Callable[[str], None] = lambda result: None,
    ) -> None:
        """``clock`` returns monotonic seconds."""
        self._arena = arena
        self._limits = limits
        self._clock = clock
        self._on_lookup = on_lookup
        self._records: dict[str, SessionRecord] = {}
        self._held: dict[str, Lease] = {}
        self._waiters: dict[str, deque[asyncio.Future[None]]] = {}
        self._promised: set[str] = set()

    @property
    def sessions(self) -> int:
        return len(self._records)

    @property
    def leases(self) -> int:
        return len(self._held)

    def get(self, session_id: str, owner: str) -> SessionRecord:
        """The record, to look at. Raises :class:`~otelctx.errors.SessionNotFound`, in the same words whether the
        session does not exist or is somebody else's."""
        record = self._records.get(session_id)
        if record is None or record.owner != owner:
            raise SessionNotFound(f"there is no session {session_id!r}", param="session")
        return record

    async def lease(self, session_id: str, owner: str, *, create: bool = True, wait: float | None = None) -> Lease:
        """The one lease of a session, made if it is new and ``create``.

        Waits in order for up to ``wait`` seconds (the store's default if ``None``). Raises
        :class:`~otelctx.errors.SessionNotFound`, :class:`~otelctx.errors.SessionBusy` or
        :class:`~otelctx.errors.Overloaded`.
        """
        found = self._records.get(session_id)
        self._on_lookup("miss" if found is None else "hit")
        if found is not None:
            self.get(session_id, owner)
        elif not create:
            raise SessionNotFound(f"there is no session {session_id!r}", param="session")
        if session_id in self._held or session_id in self._promised or session_id in self._waiters:
            await self._wait(session_id, self._limits.wait if wait is None else wait)
            self._promised.discard(session_id)
        try:
            record = self._after_waiting(session_id, owner, create)
        except BaseException:
            self._wake(session_id)
            raise
        now = self._clock()
        record.leases += 1
        record.used = now
        lease = Lease(self, record, now + self._limits.lease)
        self._held[session_id] = lease
        return lease

    def delete(self, session_id: str, owner: str) -> None:
        """Forget a session and free its pages. Raises :class:`~otelctx.errors.SessionNotFound` or ``SessionBusy``."""
        record = self.get(session_id, owner)
        if record.leases:
            raise SessionBusy(f"session {session_id!r} is running a turn; delete it afterwards", param="session")
        self._forget(record)

    def sweep(self) -> list[SessionRecord]:
        """Take back leases over their deadline, then expire sessions; returns the expired, their pages freed
        already.
        """
        now = self._clock()
        for lease in [held for held in self._held.values() if now > held.deadline]:
            lease.release()
        gone = due(self._records.values(), self._limits.idle, now)
        for record in gone:
            self._forget(record)
        return gone

    def _after_waiting(self, session_id: str, owner: str, create: bool) -> SessionRecord:
        # It may have been deleted or have expired meanwhile, and even made anew by somebody else.
        if session_id in self._records or not create:
            return self.get(session_id, owner)
        return self._create(session_id, owner)

    def _create(self, session_id: str, owner: str) -> SessionRecord:
        if len(self._records) >= self._limits.sessions:
            victim = oldest_idle(self._records.values())
            if victim is None:
                raise Overloaded(f"{len(self._records)} sessions are all busy; try again later")
            self._forget(victim)
        now = self._clock()
        record = SessionRecord(session_id, owner, TokenWindow(self._arena, self._limits.window), now, now)
        self._records[session_id] = record
        return record

    def _forget(self, record: SessionRecord) -> None:
        del self._records[record.session_id]
        record.window.release()

    async def _wait(self, session_id: str, wait: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(session_id, deque()).append(waiter)
        try:
            async with asyncio.timeout(wait):
                await waiter
        except BaseException as exc:
            if waiter.done() and not waiter.cancelled():
                # Promised and given up in the same moment: the session goes to the next in line.
                self._promised.discard(session_id)
                self._wake(session_id)
            else:
                self._leave(session_id, waiter)
            if isinstance(exc, TimeoutError):
                raise SessionBusy(
                    f"session {session_id!r} is running another turn; it did not end within {wait:g} s", param="session"
                ) from None
            raise

    def _leave(self, session_id: str, waiter: asyncio.Future[None]) -> None:
        queue = self._waiters[session_id]
        queue.remove(waiter)
        if not queue:
            del self._waiters[session_id]

    def _wake(self, session_id: str) -> None:
        """Promise a free session to the waiter first in line. Until that one runs, nobody else may take it."""
        queue = self._waiters.get(session_id)
        if queue and session_id not in self._held and session_id not in self._promised:
            waiter = queue[0]
            self._leave(session_id, waiter)
            self._promised.add(session_id)
            waiter.set_result(None)

    def _release(self, lease: Lease) -> None:
        if lease.released:
            return
        lease.released = True
        record = lease.record
        record.leases -= 1
        record.used = self._clock()
        if self._held.get(record.session_id) is lease:
            del self._held[record.session_id]
        self._wake(record.session_id)
