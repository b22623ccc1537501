"""Sessions from outside of their turns: what is known of them, their versions, rollback, labels, their end.

To look takes no lease, and shows what the last commit left. What changes a session is done under its lease, so between
two turns and never in one; what changes a window is done on the engine's thread, as turns do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from opentelemetry import trace

from otelctx import semconv
from otelctx.errors import EngineFailed, OtelctxError
from otelctx.sessions.record import SessionRecord
from otelctx.sessions.store import Lease, SessionStore
from otelctx.sessions.versions import key_of
from otelctx.telemetry.session import session_attributes

__all__ = ["Commands", "Run", "SessionDesk", "on_thread"]

Json = dict[str, Any]
Run = Callable[[Callable[[], int]], Awaitable[int]]


class Commands(Protocol):
    """An engine's thread, as its event loop sees it."""

    def command(self, call: Callable[[], None]) -> None: ...
    def report(self, call: Callable[[], None]) -> None: ...


async def on_thread(thread: Commands, call: Callable[[], int]) -> int:
    """What ``call`` returns or raises on the engine's thread. What it ought not to raise is the engine's failure."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def settle(result: int, error: OtelctxError | None = None) -> None:
        if future.done():  # whoever asked has gone
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        try:
            result = call()
        except OtelctxError as error:
            thread.report(partial(settle, 0, error))
        except BaseException:
            thread.report(partial(settle, 0, EngineFailed("the engine failed at this request")))
            raise
        else:
            thread.report(partial(settle, result))

    thread.command(run)
    return await future


class SessionDesk:
    """The sessions of ``store``. ``run`` has a call made on the engine's thread; ``clock`` gives monotonic seconds.

    Each method raises ``SessionNotFound`` for a session that is not the owner's, in the same words as for none; those
    that change a session ``SessionBusy`` if it does not become free in time, and ``VersionNotFound``.
    """

    def __init__(self, store: SessionStore, *, model: str, clock: Callable[[], float], run: Run) -> None:
        self._store = store
        self._model = model
        self._clock = clock
        self._run = run

    async def state(self, session: str, owner: str = "anonymous") -> Json:
        """One session, as JSON."""
        return self._state(self._store.get(session, owner))

    async def page(self, owner: str = "anonymous", *, limit: int = 20, after: str | None = None) -> Json:
        """The owner's sessions, newest first, as a list of OpenAI's API; ``after`` is the last of the page before."""
        found, more = self._store.owned(owner, limit, after)
        return _listed([self._state(record) for record in found], more)

    async def delete(self, session: str, owner: str = "anonymous") -> None:
        """Forget a session. Raises ``SessionBusy`` at once if it runs a turn."""
        self._store.delete(session, owner)

    async def versions(self, session: str, owner: str = "anonymous") -> Json:
        """The current version and the earlier ones that are kept, newest first."""
        record = self._store.get(session, owner)
        labels = record.labels
        window = record.window.committed
        found = [_version(labels, window.version, window.kept, window.evicted, record.turns, record.system)]
        for kept in reversed(record.kept):
            counts = kept.window.counts
            if counts.version < window.version:  # a turn may be committing this very moment
                found.append(_version(labels, counts.version, counts.kept, counts.evicted, kept.turns, kept.system))
        found[0]["current"] = True
        return _listed(found, more=False)

    async def rollback(
        self, session: str, owner: str = "anonymous", *, version: int | None = None, label: str | None = None
    ) -> Json:
        """Make an earlier version the current one: the newest kept that is not newer than ``version``, or the one that
        ``label`` names. That is a new version; those between are kept as others are."""

        async def act(record: SessionRecord) -> Json:
            target = version if label is None else record.labelled(label)
            if target is None:
                raise ValueError("a rollback needs a version or a label")
            restored = await self._run(lambda: record.restore(target))
            window = record.window.committed
            trace.get_current_span().set_attributes(
                {
                    **session_attributes(session),
                    semconv.WINDOW_VERSION: window.version,
                    semconv.WINDOW_RESTORED: restored,
                    semconv.WINDOW_USED: window.kept,
                }
            )
            return {"id": session, "object": "session.rollback", "restored": restored, **self._contents(record)}

        return await self._held(session, owner, act)

    async def label(self, session: str, label: str, owner: str = "anonymous", *, version: int | None = None) -> Json:
        """Name a version, by default the current one. A label that there is moves."""

        async def act(record: SessionRecord) -> Json:
            number = record.label(label, version)
            found = record.find(number)
            key = key_of(record.system if found is None else found.system, number)
            return {"object": "session.label", "session": session, "label": label, "version": number, "key": key}

        return await self._held(session, owner, act)

    async def unlabel(self, session: str, label: str, owner: str = "anonymous") -> None:
        """Take a label away; its version is kept only as long as others are."""

        async def act(record: SessionRecord) -> Json:
            record.unlabel(label)
            return {}

        await self._held(session, owner, act)

    async def _held(self, session: str, owner: str, act: Callable[[SessionRecord], Awaitable[Json]]) -> Json:
        lease = await self._store.lease(session, owner, create=False)
        # Whoever asked may go; the lease is given back only when the engine's thread is through.
        return await asyncio.shield(_finish(lease, act))

    def _state(self, record: SessionRecord) -> Json:
        now = self._clock()
        kept = record.kept
        return {
            "id": record.session_id,
            "object": "session",
            "model": self._model,
            "busy": record.leases > 0,
            "idle_seconds": round(max(0.0, now - record.used), 3),
            "generation": record.generation,
            **self._contents(record),
            "versions": {"kept": len(kept) + 1, "oldest": kept[0].number if kept else record.window.committed.version},
            "labels": dict(record.labels),
            "kv": {"row": record.row, "pending_tokens": len(record.pending)},
            "usage": {"input_tokens": record.input_tokens, "output_tokens": record.output_tokens},
        }

    def _contents(self, record: SessionRecord) -> Json:
        window = record.window.committed
        return {
            "version": window.version,
            "turns": record.turns,
            "window": {"used": window.kept, "limit": record.window.limit, "evicted": window.evicted},
        }


async def _finish(lease: Lease, act: Callable[[SessionRecord], Awaitable[Json]]) -> Json:
    async with lease:
        return await act(lease.record)


def _version(
    labels: tuple[tuple[str, int], ...], number: int, kept: int, evicted: int, turns: int, system: str | None
) -> Json:
    return {
        "id": key_of(system, number),
        "object": "session.version",
        "version": number,
        "current": False,
        "turns": turns,
        "window": {"used": kept, "evicted": evicted},
        "labels": sorted(label for label, at in labels if at == number),
    }


def _listed(data: Sequence[Json], more: bool) -> Json:
    return {
        "object": "list",
        "data": data,
        "has_more": more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }
