"""Slots: Redis Cluster's, the same in every process, moved as little as can be, and no worker over its share."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.policy.slots import SLOTS, SlotTable, capacity, least_loaded, place, slot_of

NAMES = st.lists(st.text("abcdefgh:/.0123456789", min_size=1, max_size=12), min_size=1, max_size=8, unique=True)


def test_the_crc_is_the_one_of_the_redis_cluster_specification() -> None:
    assert slot_of("123456789") == 0x31C3


@given(st.text(max_size=40) | st.text("{}ab", max_size=12))
def test_slots_are_those_of_the_redis_client(key: str) -> None:
    redis = pytest.importorskip("redis.crc")
    data = key.encode("utf-8", "surrogatepass")
    assert slot_of(key) == slot_of(data) == redis.key_slot(data)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [("a{user}b", "user"), ("{user}", "user"), ("{}user", "{}user"), ("a{b", "a{b"), ("{{x}}", "{x"), ("{a}{b}", "a")],
)
def test_a_hash_tag_puts_keys_into_one_slot(key: str, hashed: str) -> None:
    import binascii

    assert slot_of(key) == binascii.crc_hqx(hashed.encode(), 0) % SLOTS


@given(NAMES, st.data())
def test_when_a_node_leaves_only_its_own_slots_move(names: list[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(names))
    before, after = SlotTable(names), SlotTable(name for name in names if name != gone)
    for slot in range(0, SLOTS, 331):
        order = before.order(slot)
        assert after.order(slot) == tuple(node for node in order if node != gone)


@given(NAMES, st.randoms())
def test_the_order_in_which_nodes_are_told_does_not_matter(names: list[str], random: Random) -> None:
    shuffled = list(names)
    random.shuffle(shuffled)
    one, other = SlotTable(names), SlotTable(shuffled + shuffled[:1])
    assert [one.order(slot) for slot in range(0, SLOTS, 511)] == [other.order(slot) for slot in range(0, SLOTS, 511)]


def test_another_process_comes_to_the_same_owners() -> None:
    nodes = ["http://a:1", "http://b:2", "http://c:3"]
    code = f"from otelctx.policy.slots import *\nt = SlotTable({nodes!r})\nprint([t.order(s)[0] for s in range(0,999)])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    table = SlotTable(nodes)
    assert told.strip() == str([table.order(slot)[0] for slot in range(999)])


def test_slots_are_spread_evenly() -> None:
    table = SlotTable(f"http://10.0.0.{n}:8000" for n in range(4))
    owned = Counter(table.order(slot)[0] for slot in range(SLOTS))
    assert min(owned.values()) > 0.9 * SLOTS / 4
    assert max(owned.values()) < 1.1 * SLOTS / 4


@given(NAMES, st.lists(st.tuples(st.integers(0, SLOTS - 1), st.booleans()), max_size=200), st.floats(1, 3))
def test_no_node_is_given_a_request_that_puts_it_over_the_bound(
    names: list[str], steps: list[tuple[int, bool]], bound: float
) -> None:
    table, loads, running = SlotTable(names), dict.fromkeys(names, 0), []
    for slot, ends in steps:
        if ends and running:
            loads[running.pop(slot % len(running))] -= 1
        chosen = place(table.order(slot), loads, bound)
        assert chosen is not None
        loads[chosen] += 1
        running.append(chosen)
        assert loads[chosen] <= math.ceil(bound * len(running) / len(names))


@given(NAMES, st.integers(0, SLOTS - 1))
def test_a_slot_stays_with_its_owner_while_it_is_within_the_bound(names: list[str], slot: int) -> None:
    order = SlotTable(names).order(slot)
    assert place(order, dict.fromkeys(names, 0), 1.25) == order[0]
    loads = dict.fromkeys(names, 0) | {order[0]: 7}
    assert place(order, loads, 1.25, floor=8) == order[0]
    assert place(order, loads, math.inf) == order[0]
    if len(order) > 1:
        assert place(order, loads | {order[0]: 50}, 1.25) == order[1]


def test_without_nodes_there_is_no_place() -> None:
    assert place((), {}, 1.25) is None
    assert least_loaded((), {}) is None


def test_least_loaded_takes_the_first_of_equals() -> None:
    assert least_loaded(("b", "a", "c"), {"a": 1, "b": 1, "c": 2}) == "b"
    assert place(("a", "b"), {"a": 5, "b": 4}, 0.1) == "b"


def test_capacity_is_rounded_up_and_never_under_its_floor() -> None:
    assert (capacity(3, 2, 1.25), capacity(1, 4, 1.25), capacity(1, 4, 1.25, floor=8)) == (2, 1, 8)
