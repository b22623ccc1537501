from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.errors import ConfigError, SessionBusy, SessionNotFound
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


# finding


async def test_a_session_is_made_once_and_found_again(arena: Arena, clock: Any) -> None:
    seen: list[str] = []
    store = SessionStore(arena, Limits(window=512), clock, on_lookup=seen.append)
    async with await store.lease("s", "alice") as first:
        commit(first)
    async with await store.lease("s", "alice") as second:
        assert second.record is first.record
    with pytest.raises(SessionNotFound):
        await store.lease("s", "bob")
    assert seen == ["miss", "hit", "miss"]
    assert (store.leases, store.sessions) == (0, 1)


async def test_a_foreign_session_and_no_session_sound_the_same(store: SessionStore) -> None:
    await turn(store, "s")
    with pytest.raises(SessionNotFound) as foreign:
        await store.lease("s", "bob")
    with pytest.raises(SessionNotFound) as unknown:
        await store.lease("t", "bob", create=False)
    assert foreign.value.body() == {
        "error": unknown.value.body()["error"] | {"message": str(unknown.value).replace("'t'", "'s'")}
    }
    with pytest.raises(SessionNotFound):
        store.get("s", "bob")
    with pytest.raises(SessionNotFound):
        store.delete("s", "bob")
    assert store.get("s", "alice").owner == "alice"


async def test_a_foreign_turn_does_not_even_wait(store: SessionStore) -> None:
    async with await store.lease("s", "alice"):
        with pytest.raises(SessionNotFound):
            await asyncio.wait_for(store.lease("s", "bob", wait=3600), 60)


async def test_a_first_turn_that_never_commits_leaves_no_session(store: SessionStore, arena: Arena) -> None:
    await turn(store, "kept")
    for n in range(5):  # more than the store holds: they would have pushed out the one that is kept
        async with await store.lease(f"refused-{n}", "mallory") as lease:
            lease.window.append(lease.window.begin(), [1] * 100)
    assert (store.sessions, store.leases, arena.used_pages) == (1, 0, 1)
    async with await store.lease("refused-0", "alice") as lease:  # the id is not taken either
        assert lease.record.owner == "alice"


async def test_a_session_made_anew_is_of_a_later_generation(store: SessionStore) -> None:
    await turn(store, "s")
    first = store.get("s", "alice")
    store.delete("s", "alice")
    await turn(store, "s")
    assert store.get("s", "alice").generation > first.generation
    assert first.ended == "deleted"


# one turn at a time


async def test_turns_of_one_session_wait_in_order(store: SessionStore) -> None:
    order: list[int] = []

    async def numbered(n: int) -> None:
        async with await store.lease("s", "alice"):
            order.append(n)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for n in range(5):
            group.create_task(numbered(n))
    assert order == [0, 1, 2, 3, 4]
    assert store.leases == 0


async def test_nobody_overtakes_a_waiter_that_has_been_given_the_session(store: SessionStore) -> None:
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
        assert caught.value.code == "session_busy"
    (await store.lease("s", "alice", wait=0)).release()


async def test_only_so_many_turns_wait_for_one_session(arena: Arena, clock: Any) -> None:
    store = SessionStore(arena, Limits(window=512, waiters=2), clock)
    held = await store.lease("s", "alice")
    waiting = [asyncio.create_task(store.lease("s", "alice")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(SessionBusy, match="2 turns wait"):
        await asyncio.wait_for(store.lease("s", "alice", wait=3600), 60)
    held.release()
    for waiter in waiting:
        (await waiter).release()
    assert store.leases == 0


@pytest.mark.parametrize("when", ["waiting", "given"])
async def test_a_cancelled_waiter_loses_no_wakeup_and_leaks_no_lease(store: SessionStore, when: str) -> None:
    held = await store.lease("s", "alice")
    first = asyncio.create_task(store.lease("s", "alice"))
    second = asyncio.create_task(store.lease("s", "alice"))
    await asyncio.sleep(0)
    if when == "given":
        held.release()
        first.cancel()
    else:
        first.cancel()
        await asyncio.sleep(0)
        held.release()
    lease = await asyncio.wait_for(second, 60)
    with pytest.raises(asyncio.CancelledError):
        await first
    lease.release()
    assert store.leases == 0
    (await store.lease("s", "alice", wait=0)).release()


STEPS = st.lists(st.tuples(st.sampled_from(["start", "cancel", "finish", "sweep", "run"]), st.integers(0, 5)))


@given(steps=STEPS)
def test_whatever_is_cancelled_and_whenever_every_turn_that_stays_gets_its_lease(
    steps: list[tuple[str, int]],
) -> None:
    """At most one holder at any time; at the end nothing is held, counted or waited for."""

    async def play() -> None:
        now = 0.0
        store = SessionStore(Arena(4), Limits(window=64, lease=10, waiters=100), lambda: now)
        holding: list[int] = []
        tasks: list[asyncio.Task[None]] = []
        ends: list[asyncio.Event] = []

        async def one(n: int, end: asyncio.Event) -> None:
            async with await store.lease("s", "alice", wait=3600) as lease:
                assert not [h for h in holding if not leases[h].released]
                leases[n] = lease
                holding.append(n)
                try:
                    await end.wait()
                finally:
                    holding.remove(n)

        leases: dict[int, Lease] = {}
        swept = False
        for what, which in steps:
            if what == "start":
                ends.append(asyncio.Event())
                tasks.append(asyncio.create_task(one(len(tasks), ends[-1])))
            elif what == "cancel" and which < len(tasks):
                tasks[which].cancel()
            elif what == "finish" and which < len(ends):
                ends[which].set()
            elif what == "sweep":
                swept = True
                now += 11
                store.sweep()
            else:
                await asyncio.sleep(0)
            assert store.leases <= 1
        for end in ends:
            end.set()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        # Busy is one whose lease was over its deadline before it ran.
        assert all(r is None or isinstance(r, asyncio.CancelledError | SessionBusy) for r in results)
        assert swept or not any(isinstance(r, SessionBusy) for r in results)
        assert store.leases == 0
        assert not store._waiters
        assert all(record.leases == 0 for record in store._records.values())

    asyncio.run(play())


async def test_release_counts_once_however_often_it_is_called(store: SessionStore) -> None:
    first = await store.lease("s", "alice")
    commit(first)
    first.release()
    first.release()
    second = await store.lease("s", "alice")
    first.release()
    assert store.leases == 1
    second.release()


# the end


@pytest.mark.parametrize("state", ["held", "waited for", "given"])
async def test_a_running_session_is_not_deleted(store: SessionStore, state: str) -> None:
    lease = await store.lease("s", "alice")
    commit(lease)
    waiter = None
    if state != "held":
        waiter = asyncio.create_task(store.lease("s", "alice"))
        await asyncio.sleep(0)
    if state == "given":
        lease.release()
    with pytest.raises(SessionBusy):
        store.delete("s", "alice")
    lease.release()
    if waiter is not None:
        (await waiter).release()
    store.delete("s", "alice")
    assert store.sessions == 0


@pytest.mark.parametrize(
    ("limits", "name"),
    [({"window": 0}, "window"), ({"window": 1, "sessions": 0}, "sessions"), ({"window": 1, "idle": -1}, "idle")],
)
def test_limits_that_make_no_sense_are_refused_by_name(limits: dict[str, int], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits(**limits)


async def test_sessions_are_pushed_out_in_the_order_of_their_last_use(clock: Any) -> None:
    store = SessionStore(Arena(16), Limits(window=64, sessions=6), clock)
    busy = await store.lease("busy", "alice")
    for name in ("a", "b", "c", "d", "e", "a", "c"):
        await turn(store, name)
    for n in range(4):
        await turn(store, f"new-{n}")
    assert [r.session_id for r in store.sweep()] == ["b", "d", "e", "a"]
    busy.release()
