"""What a receiver keeps to which a later frame may refer."""

from __future__ import annotations

import gc
import tracemalloc
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.keys import Value
from otelctx.context.state import EMPTY, State
from otelctx.delta import bases
from otelctx.delta.bases import BaseCache, memory
from otelctx.delta.codec import decode_frame, encode_frame
from otelctx.delta.limits import Limits
from otelctx.delta.messages import full


def state(session: str, n: int) -> State:
    return EMPTY.put("session.id", session).put("n", n)


def test_four_bases_a_session() -> None:
    cache = BaseCache(Limits())
    for n in range(5):
        assert cache.put("d", state("s", n), "c")
    assert cache.get("d", state("s", 0).root) is None
    assert all(cache.get("d", state("s", n).root) for n in range(1, 5))


def test_the_largest_client_loses_its_oldest_base_first() -> None:
    cost = memory(state("s", 0))
    cache = BaseCache(Limits(base_bytes=4 * cost + cost // 2))
    cache.put("d", state("quiet", 0), "quiet")
    for n in range(4):
        cache.put("d", state(f"noisy{n}", n), "noisy")
    assert cache.get("d", state("quiet", 0).root) is not None
    assert cache.get("d", state("noisy0", 0).root) is None
    assert cache.bytes <= 4 * cost + cost // 2
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.sampled_from("ab")), max_size=60))
def test_the_caches_accounts_balance(puts: list[tuple[int, int, str]]) -> None:
    limit = 6 * memory(state("s0", 0))
    cache = BaseCache(Limits(base_bytes=limit))
    for session, n, client in puts:
        cache.put("d", state(f"s{session}", n), client)
        assert cache.bytes <= limit
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)


def test_within_a_session_the_base_that_was_not_referred_to_for_longest_goes() -> None:
    cache = BaseCache(Limits())
    for n in (0, 1, 2, 3, 0, 4):
        cache.put("d", state("s", n), "c")
    assert [n for n in range(5) if cache.get("d", state("s", n).root)] == [0, 2, 3, 4]


def test_a_base_that_is_used_outlives_its_clients_other_ones() -> None:
    cost = memory(state("s0", 0))
    cache = BaseCache(Limits(base_bytes=3 * cost))
    for n in range(3):
        cache.put("d", state(f"s{n}", n), "c")
    assert cache.get("d", state("s0", 0).root)
    cache.put("d", state("s3", 3), "c")
    assert [n for n in range(4) if cache.get("d", state(f"s{n}", n).root)] == [0, 2, 3]


def test_a_state_larger_than_the_whole_budget_is_not_kept() -> None:
    cache = BaseCache(Limits(base_bytes=memory(state("s", 0)) - 1))
    assert not cache.put("d", state("s", 0), "c")
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("keys", "value", "clients"),
    [
        (1, "x" * 5, 1),
        (1, "x" * 5, 100),
        (13, "x" * 20, 1),
        (13, "x" * 20, 100),
        (2, "x" * 1000, 1),
        (40, 10**12, 1),
        (13, True, 1),
        (13, 1.5, 1),
        (20, "\U0001f600" * 25, 1),
        (5, b"y" * 40, 1),
    ],
)
def test_what_a_base_is_said_to_cost_is_what_it_takes_in_memory(keys: int, value: Value, clients: int) -> None:
    """The budget is of real memory. Read from frames, as in a worker, since those share nothing but key names; and
    whether one client has sent all or each has one of its own.
    """
    bodies = []
    for n in range(200):
        one = EMPTY.put("session.id", f"session-{n}")
        for k in range(keys):
            one = one.put(f"key.number{k}", value)
        bodies.append(encode_frame(full(one)))
    cache = BaseCache(Limits())
    gc.collect()
    tracemalloc.start()
    for n, body in enumerate(bodies):
        frame = decode_frame(body)
        read = EMPTY.apply(frame.put, frame.delete)
        assert read.root == frame.root
        assert cache.put("d", read, f"10.0.0.{n % clients}")
    del frame, read
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.8 * cache.bytes <= taken <= 1.2 * cache.bytes


def test_a_state_whose_place_another_one_has_is_not_said_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two roots of the same beginning: who is told that the second is held would refer to the first, and be refused."""
    monkeypatch.setattr(bases, "BASE_BYTES", 1)
    first = state("s", 0)
    second = next(other for n in range(1, 10_000) if (other := state("t", n)).root[0] == first.root[0])
    cache = BaseCache(Limits())
    assert [cache.put("d", first, "c"), cache.put("d", second, "c"), cache.put("d", first, "c")] == [True, False, True]
    assert cache.get("d", second.root) is first
    assert (cache.base("d", second.root), len(cache)) == (None, 1)


def test_the_largest_of_many_clients_is_found_as_fast_as_of_one() -> None:
    """A new base over the budget must not cost the more, the more clients there are."""

    def cost(clients: int) -> float:
        one = memory(state("s000000", 0))
        cache = BaseCache(Limits(base_bytes=4000 * one))
        for n in range(4000):
            cache.put("d", state(f"s{n:06}", 0), f"c{n % clients}")
        times = []
        for n in range(4000, 4200):
            new = state(f"s{n:06}", 0)
            _ = new.root
            began = thread_time()
            cache.put("d", new, f"c{n % clients}")
            times.append(thread_time() - began)
        assert len(cache) == 4000
        assert len(cache._largest) <= 2 * clients + 64
        return sorted(times)[20]

    cost(1)
    assert cost(4000) < 10 * cost(1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=120))
def test_the_largest_client_is_the_one_that_loses(steps: list[tuple[int, int]]) -> None:
    cache = BaseCache(Limits(base_bytes=12 * memory(state("s", 0))))
    for client, n in steps:
        before = dict(cache._client_bytes)
        new = state(f"s{client}-{n}", n)
        known = cache.get("d", new.root) is not None
        cache.put("d", new, f"c{client}")
        assert all(-weight > 0 for weight, _ in cache._largest)
        assert len(cache._largest) <= 2 * len(cache._client_bytes) + 64
        if not known:
            before[f"c{client}"] = before.get(f"c{client}", 0) + memory(new)
        lost = [name for name, weight in before.items() if cache._client_bytes.get(name, 0) < weight]
        assert not lost or max(map(before.__getitem__, lost)) == max(before.values())
        assert sum(cache._client_bytes.values()) == cache.bytes
