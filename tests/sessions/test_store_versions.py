"""Versions in the store: they give way to turns that run, and before any session does."""

from __future__ import annotations

from typing import Any

import pytest

from otelctx.errors import SessionNotFound
from otelctx.sessions.arena import Arena
from otelctx.sessions.store import Lease, Limits, SessionStore
from otelctx.sessions.versions import Retention


def rewrite(lease: Lease, tokens: int) -> None:
    """A turn whose version shares nothing with the one before."""
    tx = lease.window.begin()
    lease.window.replace(tx, range(lease.window.version + 1, lease.window.version + tokens + 1))
    lease.record.commit(tx)


async def turns(store: SessionStore, name: str, count: int, tokens: int = 64, owner: str = "alice") -> None:
    for _ in range(count):
        async with await store.lease(name, owner) as lease:
            rewrite(lease, tokens)


async def test_versions_go_before_sessions_those_of_the_least_recently_used_first(clock: Any) -> None:
    arena = Arena(24)
    store = SessionStore(arena, Limits(window=128), clock)  # a window takes four pages at most
    for name in ("a", "b", "c"):
        await turns(store, name, 6)
    assert arena.free_pages == 6
    first = await store.lease("new", "alice")
    assert arena.free_pages == 6
    second = await store.lease("c", "alice")
    assert arena.free_pages == 8
    assert [len(store.get(name, "alice").kept) for name in ("a", "b", "c")] == [3, 5, 5]
    more = [await store.lease(f"more-{n}", "alice") for n in range(3)]
    assert arena.free_pages == 16  # not the twenty for five: those of a session that is held belong to its holder
    assert [len(store.get(name, "alice").kept) for name in ("a", "b", "c")] == [0, 0, 5]
    assert store.sweep() == []
    for lease in (first, second, *more):
        lease.release()


async def test_versions_that_come_while_others_run_give_way_at_the_end_of_their_turn(clock: Any) -> None:
    arena = Arena(13)
    store = SessionStore(arena, Limits(window=128), clock)
    await turns(store, "a", 2, 128)
    running = await store.lease("running", "alice")
    await turns(store, "a", 4, 128)
    assert arena.free_pages >= 4
    running.release()


async def test_however_many_versions_there_are_every_session_that_would_fit_without_them_gets_its_pages(
    clock: Any,
) -> None:
    arena = Arena(40)
    store = SessionStore(arena, Limits(window=128, versions=Retention(last=100)), clock)
    for turn in range(30):
        for name in range(4):
            async with await store.lease(f"s{name}", "alice") as lease:
                rewrite(lease, 128 - turn % 5)
    assert store.sessions == 4
    assert store.sweep() == []


async def test_a_session_that_leaves_takes_its_versions_with_it(store: SessionStore, arena: Arena, clock: Any) -> None:
    await turns(store, "a", 3)
    await turns(store, "b", 3)
    assert arena.used_pages == 6
    store.delete("a", "alice")
    assert arena.used_pages == 3
    clock.now = 100
    assert [record.session_id for record in store.sweep()] == ["b"]
    assert arena.used_pages == 0


async def test_a_session_is_listed_for_its_owner_alone(store: SessionStore) -> None:
    for name, owner in (("a", "alice"), ("x", "bob"), ("b", "alice")):
        await turns(store, name, 1, owner=owner)
    found, more = store.owned("alice", 1)
    assert ([r.session_id for r in found], more) == (["b"], True)
    found, more = store.owned("alice", 1, "b")
    assert ([r.session_id for r in found], more) == (["a"], False)
    for after in ("x", "y"):
        with pytest.raises(SessionNotFound):
            store.owned("alice", 1, after)
    store.delete("a", "alice")
    assert store.owned("alice", 9) == ([store.get("b", "alice")], False)
