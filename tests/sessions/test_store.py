from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.errors import ConfigError, Overloaded, SessionBusy, SessionNotFound, VersionConflict
from otelctx.sessions.arena import Arena
from otelctx.sessions.store import Lease, Limits, SessionStore


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


def commit(lease: Lease, tokens: int = 1) -> None:
    """A turn, as far as the store can see one."""
    tx = lease.window.begin()
    lease.window.append(tx, range(1, tokens + 1))
    lease.window.commit(tx)


async def turn(store: SessionStore, session_id: str, owner: str = "alice") -> None:
    async with await store.lease(session_id, owner) as lease:
        commit(lease)


# finding


async def test_a_session_is_made_once_and_found_again(arena: Arena, clock: Clock) -> None:
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
            await asyncio.wait_for(store.lease("s", "bob", wait=3600), 5)


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


async def test_only_so_many_turns_wait_for_one_session(arena: Arena, clock: Clock) -> None:
    store = SessionStore(arena, Limits(window=512, waiters=2), clock)
    held = await store.lease("s", "alice")
    waiting = [asyncio.create_task(store.lease("s", "alice")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(SessionBusy, match="2 turns wait"):
        await asyncio.wait_for(store.lease("s", "alice", wait=3600), 5)
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
    lease = await asyncio.wait_for(second, 5)
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
        clock = Clock()
        store = SessionStore(Arena(4), Limits(window=64, lease=10, waiters=100), clock)
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
                clock.now += 11
                store.sweep()
            else:
                await asyncio.sleep(0)
            assert store.leases <= 1
        for end in ends:
            end.set()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
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


# deadlines and expiry


async def test_a_lease_over_its_deadline_is_taken_back_and_its_late_end_ignored(
    store: SessionStore, clock: Clock
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
    lease = await asyncio.wait_for(waiter, 5)
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


async def test_a_turn_that_makes_progress_keeps_its_lease(store: SessionStore, clock: Clock) -> None:
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


async def test_a_lease_taken_back_before_its_holder_ran_is_not_handed_out(store: SessionStore, clock: Clock) -> None:
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
    store: SessionStore, arena: Arena, clock: Clock
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


async def test_a_busy_session_hides_no_idle_one_from_the_sweeper(store: SessionStore, clock: Clock) -> None:
    for name in ("first", "second"):
        await turn(store, name)
    clock.now = 50
    lease = await store.lease("first", "alice")
    clock.now = 70
    assert [r.session_id for r in store.sweep()] == ["second"]
    lease.release()


async def test_a_session_that_a_turn_waits_for_does_not_expire(store: SessionStore, clock: Clock) -> None:
    held = await store.lease("s", "alice")
    commit(held)
    waiter = asyncio.create_task(store.lease("s", "alice"))
    await asyncio.sleep(0)
    clock.now = 1000
    assert store.sweep() == []
    (await waiter).release()
    assert store.sessions == 1


async def test_a_full_store_forgets_the_session_idle_longest_and_never_a_busy_one(
    store: SessionStore, clock: Clock
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


async def test_running_turns_find_memory_while_idle_sessions_have_some(clock: Clock) -> None:
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


async def test_sessions_are_pushed_out_in_the_order_of_their_last_use(clock: Clock) -> None:
    store = SessionStore(Arena(16), Limits(window=64, sessions=6), clock)
    busy = await store.lease("busy", "alice")
    for name in ("a", "b", "c", "d", "e", "a", "c"):
        await turn(store, name)
    for n in range(4):
        await turn(store, f"new-{n}")
    assert [r.session_id for r in store.sweep()] == ["b", "d", "e", "a"]
    busy.release()
