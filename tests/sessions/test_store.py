from __future__ import annotations

import asyncio

import pytest

from otelctx.errors import Overloaded, SessionBusy, SessionNotFound
from otelctx.sessions.arena import Arena
from otelctx.sessions.store import Limits, SessionStore


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def arena() -> Arena:
    return Arena(16)


@pytest.fixture
def store(arena: Arena, clock: Clock) -> SessionStore:
    return SessionStore(arena, Limits(window=512, sessions=3, idle=60, lease=30), clock)


async def test_a_session_is_made_once_and_found_again(arena: Arena, clock: Clock) -> None:
    seen: list[str] = []
    store = SessionStore(arena, Limits(window=512), clock, on_lookup=seen.append)
    async with await store.lease("s", "alice") as first:
        pass
    async with await store.lease("s", "alice") as second:
        assert second.record is first.record
    assert seen == ["miss", "hit"]
    assert (store.leases, store.sessions) == (0, 1)


async def test_a_foreign_session_and_no_session_sound_the_same(store: SessionStore) -> None:
    (await store.lease("s", "alice")).release()
    with pytest.raises(SessionNotFound) as foreign:
        await store.lease("s", "bob")
    with pytest.raises(SessionNotFound) as unknown:
        await store.lease("t", "bob", create=False)
    assert str(foreign.value).replace("'s'", "'t'") == str(unknown.value)
    with pytest.raises(SessionNotFound):
        store.get("s", "bob")
    with pytest.raises(SessionNotFound):
        store.delete("s", "bob")


async def test_turns_of_one_session_wait_in_order(store: SessionStore) -> None:
    order: list[int] = []

    async def turn(n: int) -> None:
        async with await store.lease("s", "alice"):
            order.append(n)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for n in range(5):
            group.create_task(turn(n))
    assert order == [0, 1, 2, 3, 4]
    assert store.leases == 0


async def test_nobody_overtakes_a_waiter_that_has_been_promised_the_session(store: SessionStore) -> None:
    held = await store.lease("s", "alice")
    waiter = asyncio.create_task(store.lease("s", "alice"))
    await asyncio.sleep(0)
    held.release()
    with pytest.raises(SessionBusy):  # the waiter has not run yet, but the session is its
        await store.lease("s", "alice", wait=0)
    lease = await waiter
    assert store.leases == 1
    lease.release()


async def test_a_second_turn_is_refused_after_its_wait(store: SessionStore) -> None:
    async with await store.lease("s", "alice"):
        with pytest.raises(SessionBusy) as caught:
            await store.lease("s", "alice", wait=0)
        assert caught.value.status == 409
    (await store.lease("s", "alice", wait=0)).release()


@pytest.mark.parametrize("when", ["waiting", "promised"])
async def test_a_cancelled_waiter_loses_no_wakeup_and_leaks_no_lease(store: SessionStore, when: str) -> None:
    held = await store.lease("s", "alice")
    first = asyncio.create_task(store.lease("s", "alice"))
    second = asyncio.create_task(store.lease("s", "alice"))
    await asyncio.sleep(0)
    if when == "promised":
        held.release()
        first.cancel()
    else:
        first.cancel()
        await asyncio.sleep(0)
        held.release()
    lease = await asyncio.wait_for(second, 5)
    with pytest.raises(asyncio.CancelledError):
        await first
    lease.release()
    assert store.leases == 0
    (await store.lease("s", "alice", wait=0)).release()


async def test_release_counts_once_however_often_it_is_called(store: SessionStore) -> None:
    first = await store.lease("s", "alice")
    first.release()
    first.release()
    second = await store.lease("s", "alice")
    first.release()
    assert store.leases == 1
    second.release()


async def test_a_lease_over_its_deadline_is_taken_back_and_its_late_end_ignored(
    store: SessionStore, clock: Clock
) -> None:
    stuck = await store.lease("s", "alice")
    clock.now = 31
    assert store.sweep() == []
    lease = await store.lease("s", "alice", wait=0)
    stuck.release()
    assert store.leases == 1
    lease.release()


async def test_only_idle_sessions_expire_and_their_pages_come_back(
    store: SessionStore, arena: Arena, clock: Clock
) -> None:
    lease = await store.lease("s", "alice")
    tx = lease.window.begin()
    lease.window.append(tx, range(100))
    lease.window.commit(tx)
    busy = await store.lease("busy", "alice")
    clock.now = 20
    lease.release()
    clock.now = 29
    assert store.sweep() == []
    clock.now = 81
    assert [r.session_id for r in store.sweep()] == ["s"]
    assert arena.used_pages == 0
    busy.release()


async def test_a_full_store_forgets_the_session_idle_longest_and_never_a_busy_one(
    store: SessionStore, clock: Clock
) -> None:
    leases = {}
    for at, name in enumerate(("a", "b", "c")):
        clock.now = at
        leases[name] = await store.lease(name, "alice")
    with pytest.raises(Overloaded):
        await store.lease("d", "alice")
    leases["b"].release()
    (await store.lease("d", "alice")).release()
    with pytest.raises(SessionNotFound):
        store.get("b", "alice")
    assert store.get("a", "alice").leases == 1


async def test_a_running_session_is_not_deleted(store: SessionStore) -> None:
    async with await store.lease("s", "alice"):
        with pytest.raises(SessionBusy):
            store.delete("s", "alice")
    store.delete("s", "alice")
    assert store.sessions == 0


async def test_a_session_deleted_while_a_turn_waits_is_made_anew_or_missing(store: SessionStore) -> None:
    held = await store.lease("s", "alice")
    strict = asyncio.create_task(store.lease("s", "alice", create=False))
    lenient = asyncio.create_task(store.lease("s", "alice"))
    await asyncio.sleep(0)
    held.release()
    store.delete("s", "alice")
    with pytest.raises(SessionNotFound):
        await strict
    (await asyncio.wait_for(lenient, 5)).release()
    assert store.sessions == 1
