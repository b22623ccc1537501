"""Sessions in memory: found by id, checked by owner, leased to one turn at a time.

A lease pins its session until it is released, or until its deadline, when the sweeper takes it back: a turn that hangs
must not keep a session for ever; one that makes progress renews its lease. What a reclaimed lease's holder does later
is ignored. Turns that wait pin the
session too, and the lease passes from the turn that ends to the one first in line with nobody in between; so a session
can't expire, be pushed out or be deleted under a turn that was promised it.

A session stays from its first commit on: one whose first turn was refused or cancelled is forgotten with its lease, or
refused turns would push conversations out of a full store.

Memory for turns that run goes before memory of what nobody uses. With each lease, earlier versions of idle sessions
go, those of the least recently used first, until there is a window's worth of free pages for every lease; then idle
sessions themselves, in the same order, until that is so or half of the arena is free.

The store belongs to one event loop. It keeps no clock of its own and does no telemetry: it calls ``on_lookup`` with
``hit`` or ``miss``, and returns what has expired.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import islice
from types import TracebackType

from otelctx.errors import ConfigError, Overloaded, SessionBusy, SessionDeadline, SessionNotFound
from otelctx.sessions.arena import Arena, pages_for
from otelctx.sessions.expiry import due, oldest_idle
from otelctx.sessions.owned import Owned
from otelctx.sessions.record import Ended, SessionRecord, reclaim
from otelctx.sessions.versions import RETENTION, Retention
from otelctx.sessions.window import TokenWindow

__all__ = ["Lease", "Limits", "SessionStore"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds. ``window`` is the tokens each session may keep, ``sessions`` the number kept at once,
    ``waiters`` the turns that may wait for one session, and ``versions`` which earlier ones of a session are kept.
    """

    window: int
    sessions: int = 10_000
    idle: float = 3600.0
    wait: float = 30.0
    lease: float = 600.0
    waiters: int = 32
    versions: Retention = RETENTION

    def __post_init__(self) -> None:
        for limit in fields(self)[:-1]:
            value, least = getattr(self, limit.name), 1 if limit.name in ("window", "sessions") else 0
            if value < least:
                raise ConfigError(f"sessions: {limit.name} must be at least {least}, not {value}")


class Lease:
    """One turn's hold on a session. ``async with lease:`` or :meth:`release`, which may be called any number of
    times.

    ``on_overdue`` is for a holder that can end its turn: the sweeper calls it when the lease is over its deadline, and
    leaves it to the holder to release the lease once the turn has been taken back.
    """

    __slots__ = ("_store", "deadline", "on_overdue", "record", "released")

    def __init__(self, store: SessionStore, record: SessionRecord, deadline: float) -> None:
        self._store = store
        self.record = record
        self.deadline = deadline
        self.on_overdue: Callable[[], None] | None = None
        self.released = False

    @property
    def window(self) -> TokenWindow:
        return self.record.window

    def renew(self) -> None:
        """The turn makes progress: its deadline starts anew. A lease that was taken back stays so."""
        self.deadline = self._store._deadline()

    def release(self) -> None:
        """Give the session to the next waiter, or to nobody. Must be called on the store's event loop, after the
        turn's commit or rollback."""
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
        self._records: OrderedDict[str, SessionRecord] = OrderedDict()  # least recently used first
        self._owned = Owned()
        self._versioned: OrderedDict[str, SessionRecord] = OrderedDict()  # idle, with versions: in the same order
        self._held: dict[str, Lease] = {}
        self._waiters: dict[str, deque[asyncio.Future[Lease]]] = {}
        self._pushed_out: deque[SessionRecord] = deque(maxlen=limits.sessions)
        self._generation = 0
        # Pinned tokens and the rest each begin or end within a page, so two pages may be half used.
        self._window_pages = pages_for(limits.window) + 2

    @property
    def sessions(self) -> int:
        return len(self._records)

    @property
    def leases(self) -> int:
        return len(self._held)

    def occupancy(self, sample: int = 1024) -> tuple[int, int]:
        """Tokens that sessions keep, and tokens that the pages of their windows could hold. One minus their quotient is
        the arena's fragmentation: each window has a page for its prefix, one for its oldest tokens and one for its
        newest that need not be full.

        Of at most ``sample`` sessions, and of each its current version: this is read for every export, from any thread.
        """
        found = [record.window.occupancy for record in list(islice(self._records.values(), sample))]
        return sum(kept for kept, _ in found), sum(room for _, room in found)

    def get(self, session_id: str, owner: str) -> SessionRecord:
        """The record, to look at. Raises :class:`~otelctx.errors.SessionNotFound`, in the same words whether the
        session does not exist or is somebody else's."""
        record = self._records.get(session_id)
        if record is None or record.owner != owner:
            raise SessionNotFound(f"there is no session {session_id!r}", param="session")
        return record

    def owned(self, owner: str, limit: int, after: str | None = None) -> tuple[list[SessionRecord], bool]:
        """Up to ``limit`` of the owner's sessions, the newest first, from the one made before ``after`` on; and whether
        there are more. Raises :class:`~otelctx.errors.SessionNotFound` if ``after`` is none of them."""
        return self._owned.page(owner, limit, None if after is None else self.get(after, owner))

    async def lease(self, session_id: str, owner: str, *, create: bool = True, wait: float | None = None) -> Lease:
        """The one lease of a session, made if it is new and ``create``.

        Waits in order for up to ``wait`` seconds, and not longer than the store's limit. Raises
        :class:`~otelctx.errors.SessionDeadline` if ``wait`` is less than that and has passed,
        :class:`~otelctx.errors.SessionNotFound`, :class:`~otelctx.errors.SessionBusy` or
        :class:`~otelctx.errors.Overloaded`.
        """
        known = self._records.get(session_id)
        self._on_lookup("hit" if known is not None and known.owner == owner else "miss")
        if known is None and create:
            record = self._create(session_id, owner)
        else:
            record = self.get(session_id, owner)
        if record.leases:
            return await self._wait(record, self._limits.wait if wait is None else min(wait, self._limits.wait))
        record.leases = 1
        return self._grant(record)

    def delete(self, session_id: str, owner: str) -> None:
        """Forget a session and free its pages. Raises :class:`~otelctx.errors.SessionNotFound` or ``SessionBusy``."""
        record = self.get(session_id, owner)
        if record.leases:
            raise SessionBusy(f"session {session_id!r} is running a turn; delete it afterwards", param="session")
        self._forget(record, "deleted")

    def sweep(self) -> list[SessionRecord]:
        """Take back leases over their deadline, then expire sessions.

        Returns those that have left since the last sweep, expired (``ended`` is ``idle``) or pushed out by others in a
        full store (``capacity``); their pages are free already.
        """
        now = self._clock()
        for lease in [held for held in self._held.values() if now > held.deadline]:
            if lease.on_overdue is not None:
                lease.on_overdue()
                continue
            # Whoever held it may be at work on another thread: its transaction ends there, and counts for nothing.
            lease.window.void()
            self._pass_on(lease)
        gone = due(self._records.values(), self._limits.idle, now)
        for record in gone:
            self._forget(record, "idle")
        gone = [*self._pushed_out, *gone]
        self._pushed_out.clear()
        return gone

    def _create(self, session_id: str, owner: str) -> SessionRecord:
        if len(self._records) >= self._limits.sessions:
            victim = oldest_idle(self._records.values())
            if victim is None:
                raise Overloaded(f"{len(self._records)} sessions are all busy; try again later")
            self._push_out(victim)
        now = self._clock()
        self._generation += 1
        window = TokenWindow(self._arena, self._limits.window)
        record = SessionRecord(session_id, owner, window, now, now, self._generation, retention=self._limits.versions)
        self._records[session_id] = record
        self._owned.add(record)
        return record

    def _forget(self, record: SessionRecord, why: Ended) -> None:
        del self._records[record.session_id]
        self._versioned.pop(record.session_id, None)
        self._owned.remove(record)
        record.ended = why
        record.release()

    def _push_out(self, victim: SessionRecord) -> None:
        self._forget(victim, "capacity")
        self._pushed_out.append(victim)

    def _make_room(self) -> None:
        wanted = (len(self._held) + 1) * self._window_pages
        self._reclaim(wanted)
        wanted = min(wanted, self._arena.pages // 2)
        while not self._arena.can_allocate(wanted):
            victim = oldest_idle(self._records.values())
            if victim is None:
                break
            self._push_out(victim)

    def _reclaim(self, pages: int) -> None:
        """Versions of idle sessions go until ``pages`` pages are free. Those of others belong to who holds them."""
        while self._versioned and not self._arena.can_allocate(pages):
            record = next(iter(self._versioned.values()))
            reclaim((record,), self._arena, pages)
            if not record.kept:
                del self._versioned[record.session_id]

    def _grant(self, record: SessionRecord) -> Lease:
        """A new lease; ``record.leases`` counts its holder already."""
        self._versioned.pop(record.session_id, None)
        self._make_room()
        record.used = self._clock()
        self._records.move_to_end(record.session_id)
        lease = self._held[record.session_id] = Lease(self, record, self._deadline())
        return lease

    def _deadline(self) -> float:
        return self._clock() + self._limits.lease

    async def _wait(self, record: SessionRecord, wait: float) -> Lease:
        # One of the leases is the holder's.
        if record.leases > self._limits.waiters:
            raise SessionBusy(
                f"{record.leases - 1} turns wait for session {record.session_id!r} already", param="session"
            )
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(record.session_id, deque()).append(waiter)
        record.leases += 1
        try:
            await asyncio.wait((waiter,), timeout=wait)
        except BaseException:
            if waiter.done():  # cancelled in the very moment in which the lease came: it goes to the next in line
                waiter.result().release()
            else:
                self._give_up(record, waiter)
            raise
        if not waiter.done():
            self._give_up(record, waiter)
        elif not waiter.result().released:  # it may be over its deadline before its holder ever ran
            return waiter.result()
        kind = SessionDeadline if wait < self._limits.wait else SessionBusy
        raise kind(
            f"session {record.session_id!r} is running another turn; it did not end within {wait:g} s", param="session"
        )

    def _give_up(self, record: SessionRecord, waiter: asyncio.Future[Lease]) -> None:
        record.leases -= 1
        self._leave(record, waiter)

    def _leave(self, record: SessionRecord, waiter: asyncio.Future[Lease]) -> None:
        queue = self._waiters[record.session_id]
        queue.remove(waiter)
        if not queue:
            del self._waiters[record.session_id]

    def _release(self, lease: Lease) -> None:
        if lease.released:
            return
        self._pass_on(lease)
        record = lease.record
        if record.leases == 0 and record.window.version == 0:
            self._forget(record, "unused")

    def _pass_on(self, lease: Lease) -> None:
        """The lease is over: the first waiter has the next, and its place among ``record.leases`` stays its own."""
        record = lease.record
        lease.released = True
        record.leases -= 1
        del self._held[record.session_id]
        queue = self._waiters.get(record.session_id)
        if queue:
            waiter = queue[0]
            self._leave(record, waiter)
            waiter.set_result(self._grant(record))
        else:
            record.used = self._clock()
            self._records.move_to_end(record.session_id)
            if record.kept:
                self._versioned[record.session_id] = record
                self._reclaim(len(self._held) * self._window_pages)
