"""Which paths of an origin ack: remembered within bounds, whatever an application puts into its URLs."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.state import EMPTY
from otelctx.delta.limits import Limits
from otelctx.delta.links import Paths
from otelctx.delta.messages import Ack, AckKind, Held
from otelctx.delta.sender import Reply, Sender

STATE = EMPTY.put("session.id", "s")


def test_a_path_is_known_by_three_acks_in_a_row() -> None:
    paths = Paths(Limits())
    seen = []
    for _ in range(4):
        paths.acked("/a")
        seen.append((paths.acks("/a"), paths.known("/a")))
    assert seen == [(1, False), (2, False), (3, True), (3, True)]
    paths.silent("/a")
    assert (paths.acks("/a"), paths.known("/a"), paths.acks("/b"), len(paths)) == (0, False, 0, 0)


def test_over_the_number_the_one_that_was_not_used_for_longest_goes() -> None:
    paths = Paths(Limits(paths=3))
    for path in ("/a", "/b", "/c"):
        paths.acked(path)
    assert paths.acks("/a") == 1
    paths.acked("/d")
    assert [paths.acks(path) for path in ("/a", "/b", "/c", "/d")] == [1, 0, 1, 1]


def test_to_ask_whether_a_path_is_known_is_no_use_of_it() -> None:
    paths = Paths(Limits(paths=2))
    for path in ("/a", "/b"):
        paths.acked(path)
    assert not paths.known("/a")
    paths.acked("/c")
    assert [paths.acks(path) for path in ("/a", "/b", "/c")] == [0, 1, 1]


def test_over_the_bytes_long_paths_go_and_one_that_is_too_long_is_none() -> None:
    paths = Paths(Limits(path_bytes=10_000))
    for n in range(100):
        paths.acked(f"/{n}/" + "x" * 900)
    assert len(paths) == 9
    assert paths.bytes <= 10_000
    paths.acked("/" + "x" * 20_000)
    assert (len(paths), paths.bytes) == (0, 0)
    paths.acked("/a")
    assert paths.acks("/a") == 1


@given(st.lists(st.tuples(st.sampled_from(["ask", "ack", "silent"]), st.text(max_size=40)), max_size=60))
def test_the_accounts_balance(steps: list[tuple[str, str]]) -> None:
    limits = Limits(paths=4, path_bytes=1200)
    paths, known = Paths(limits), set()
    for step, path in steps:
        known.add(path)
        {"ask": paths.acks, "ack": paths.acked, "silent": paths.silent}[step](path)
        assert len(paths) <= limits.paths
        assert 0 <= paths.bytes <= limits.path_bytes
    for path in known:
        paths.silent(path)
    assert (len(paths), paths.bytes) == (0, 0)


def test_what_paths_are_said_to_cost_is_what_they_take_in_memory() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        paths = Paths(Limits())
        for n in range(1024):
            paths.acked(f"/v1/conversations/{n:08d}/messages")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert paths.bytes == pytest.approx(after - before, rel=0.2)


def test_an_application_with_an_id_in_each_path_does_not_fill_memory() -> None:
    """One megabyte an origin, whatever its URLs."""
    sender = Sender(Limits())
    for n in range(3000):
        offer = sender.offer(STATE, path=f"/{n}/" + "x" * 2000, safe=False, must_be_full=False, now=0.0)
        ack = Ack(AckKind.ACK, STATE.root[:8], Held.PROCESS, 1)
        sender.close(offer, Reply(200, ack, True, False, False), 0.0)
    assert 2**19 < sender.bytes < 2**20 + 8192
