from __future__ import annotations

import asyncio
from typing import Any

import pytest

from otelctx.errors import Overloaded, SessionBusy, SessionDeadline, SessionNotFound, VersionConflict
from otelctx.sessions.arena import Arena
from otelctx.sessions.store import Lease, Limits, SessionStore


def commit(lease: Lease, tokens: int = 1) -> None:
    """A turn, as far as the store can see one."""
    tx = lease.window.begin()
    lease.window.append(tx, range(1, tokens + 1))
    lease.window.commit(tx)


async def turn(store: SessionStore, session_id: str, owner: str = "alice") -> None:
    async with await store.lease(session_id, owner) as lease:
        commit(lease)


async def test_a_lease_over_its_deadline_is_taken_back_and_its_late_end_ignored(
    store: SessionStore, clock: Any
) -> None:
    stuck = await store.lease("s", "alice")
    commit(stuck, 10)
    tx = stuck.window.begin()
    stuck.window.append(tx, [1, 2, 3])
    waiter = asyncio.create_task(store.lease("s", "alice"))
    await asyncio.sleep(0)
    clock.now = 30
    store.sweep()
    assert not stuck.released  # not over, only at its deadline
    clock.now = 31
    assert store.sweep() == []
    assert stuck.released
    lease = await asyncio.wait_for(waiter, 60)
    with pytest.raises(VersionConflict):
        stuck.window.commit(tx)
    new = lease.window.begin()
    assert lease.window.kept == 10
    stuck.window.rollback(tx)
    stuck.release()
    lease.window.append(new, [4])
    lease.window.commit(new)
    assert store.leases == 1
    lease.release()
    assert store.get("s", "alice").window.tokens().tolist() == [*range(1, 11), 4]


async def test_a_turn_that_makes_progress_keeps_its_lease(store: SessionStore, clock: Any) -> None:
    lease = await store.lease("s", "alice")
    for _ in range(5):
        clock.now += 25
        lease.renew()
        store.sweep()
        assert not lease.released
    clock.now += 31
    store.sweep()
    assert lease.released
    lease.renew()
    store.sweep()
    assert store.leases == 0


async def test_a_lease_taken_back_before_its_holder_ran_is_not_handed_out(store: SessionStore, clock: Any) -> None:
    held = await store.lease("s", "alice")
    commit(held)
    waiter = asyncio.create_task(store.lease("s", "alice"))
    await asyncio.sleep(0)
    held.release()
    clock.now = 31
    store.sweep()
    other = await store.lease("s", "alice")
    with pytest.raises(SessionBusy):
        await waiter
    assert store.leases == 1
    other.release()


async def test_only_idle_sessions_expire_and_their_pages_come_back(
    store: SessionStore, arena: Arena, clock: Any
) -> None:
    lease = await store.lease("s", "alice")
    commit(lease, 100)
    busy = await store.lease("busy", "alice")
    clock.now = 20
    lease.release()
    clock.now = 29
    assert store.sweep() == []
    clock.now = 80
    assert store.sweep() == []
    assert busy.released  # over its deadline, but its session counts as used until then
    clock.now = 81
    (expired,) = store.sweep()
    assert (expired.session_id, expired.ended) == ("s", "idle")
    assert arena.used_pages == 0
    assert store.sweep() == []
    assert store.sessions == 1


async def test_a_busy_session_hides_no_idle_one_from_the_sweeper(store: SessionStore, clock: Any) -> None:
    for name in ("first", "second"):
        await turn(store, name)
    clock.now = 50
    lease = await store.lease("first", "alice")
    clock.now = 70
    assert [r.session_id for r in store.sweep()] == ["second"]
    lease.release()


async def test_a_session_that_a_turn_waits_for_does_not_expire(store: SessionStore, clock: Any) -> None:
    held = await store.lease("s", "alice")
    commit(held)
    waiter = asyncio.create_task(store.lease("s", "alice"))
    await asyncio.sleep(0)
    clock.now = 1000
    assert store.sweep() == []
    (await waiter).release()
    assert store.sessions == 1


async def test_a_full_store_forgets_the_session_idle_longest_and_never_a_busy_one(
    store: SessionStore, clock: Any
) -> None:
    leases = {}
    for at, name in enumerate(("a", "b", "c")):
        clock.now = at
        leases[name] = await store.lease(name, "alice")
        commit(leases[name])
    with pytest.raises(Overloaded) as caught:
        await store.lease("d", "alice")
    assert caught.value.status == 503
    leases["c"].release()
    leases["b"].release()
    await turn(store, "d")
    with pytest.raises(SessionNotFound):
        store.get("c", "alice")
    assert store.get("a", "alice").leases == 1
    (pushed,) = store.sweep()
    assert (pushed.session_id, pushed.ended) == ("c", "capacity")
    assert store.sweep() == []


async def test_a_session_given_to_a_waiter_is_not_pushed_out_before_that_runs(store: SessionStore) -> None:
    leases = [await store.lease(name, "alice") for name in ("a", "b", "c")]
    commit(leases[0])
    waiter = asyncio.create_task(store.lease("a", "alice"))
    await asyncio.sleep(0)
    leases[0].release()
    with pytest.raises(Overloaded):
        await store.lease("d", "alice")
    assert (await waiter).record is leases[0].record


async def test_running_turns_find_memory_while_idle_sessions_have_some(clock: Any) -> None:
    """Idle sessions leave, oldest first, and none more than it takes."""
    arena = Arena(40)
    store = SessionStore(arena, Limits(window=128), clock)  # a window takes four pages at most
    for n in range(19):
        async with await store.lease(f"s{n}", "alice") as lease:
            commit(lease, 128)
    assert arena.free_pages == 2
    assert store.sweep() == []
    first = await store.lease("first", "alice")
    second = await store.lease("s18", "alice")
    assert arena.free_pages == 8
    assert [(r.session_id, r.ended) for r in store.sweep()] == [(f"s{n}", "capacity") for n in range(3)]
    many = [await store.lease(f"many-{n}", "alice") for n in range(20)]
    assert arena.free_pages == 20  # half of the arena, and not more
    assert store.get("s17", "alice").window.kept == 128
    for lease in (first, second, *many):
        lease.release()


async def test_a_holder_that_can_end_its_turn_is_asked_to(store: SessionStore, clock: Any) -> None:
    """The session is not given away before its holder has let go: its turn may be at work on it."""
    lease = await store.lease("s", "owner")
    asked: list[bool] = []
    lease.on_overdue = lambda: asked.append(True)
    waiting = asyncio.create_task(store.lease("s", "owner"))
    await asyncio.sleep(0)
    clock.now += 601
    store.sweep()
    store.sweep()
    await asyncio.sleep(0)
    assert (len(asked), lease.released, waiting.done()) == (2, False, False)
    lease.release()
    (await waiting).release()


async def test_a_wait_that_the_caller_bounds_ends_with_its_deadline(store: SessionStore) -> None:
    lease = await store.lease("s", "owner")
    with pytest.raises(SessionDeadline):
        await store.lease("s", "owner", wait=0.01)
    lease.release()
    (await store.lease("s", "owner", wait=0)).release()
