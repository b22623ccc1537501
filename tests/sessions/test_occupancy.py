"""How full the pages in use are: what ``otelctx.arena.fragmentation`` is made of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.sessions.arena import PAGE, Arena
from otelctx.sessions.store import Limits, SessionStore
from otelctx.sessions.window import TokenWindow


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_a_window_has_as_much_room_as_its_pages_hold(pinned: int, evicted: int, kept: int) -> None:
    arena = Arena(16)
    window = TokenWindow(arena, 1024)
    tx = window.begin()
    window.append(tx, range(pinned))
    window.pin(tx, pinned)
    window.append(tx, range(evicted + kept))
    window.evict_tokens(tx, evicted)
    assert window.occupancy == (0, 0), "nothing is committed yet"
    window.commit(tx)
    assert window.occupancy == (pinned + kept, PAGE * arena.used_pages)


async def test_a_store_adds_up_a_sample_of_its_sessions(store: SessionStore) -> None:
    assert store.occupancy() == (0, 0)
    for name, tokens in (("a", 10), ("b", 70), ("c", 64)):
        async with await store.lease(name, "alice") as lease:
            tx = lease.window.begin()
            lease.window.append(tx, range(tokens))
            lease.window.commit(tx)
    assert store.occupancy() == (144, 4 * PAGE)
    assert store.occupancy(sample=2) == (80, 3 * PAGE)


async def test_earlier_versions_are_not_counted_twice(clock: Any) -> None:
    store = SessionStore(Arena(16), Limits(window=512), clock)
    for _ in range(3):
        async with await store.lease("s", "alice") as lease:
            tx = lease.window.begin()
            lease.window.append(tx, range(10))
            lease.record.commit(tx)
    assert store.occupancy() == (30, PAGE)


@pytest.mark.parametrize("tokens", [1, 63, 64, 65])
async def test_an_open_turn_is_not_seen_before_it_commits(store: SessionStore, tokens: int) -> None:
    async with await store.lease("s", "alice") as lease:
        tx = lease.window.begin()
        lease.window.append(tx, range(tokens))
        assert store.occupancy() == (0, 0)
        lease.window.commit(tx)
        assert store.occupancy()[0] == tokens
