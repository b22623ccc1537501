"""What waits for a session's next ack is bounded in memory, too: an application chooses how much it records."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.scope import UpValue
from otelctx.context.state import Window
from otelctx.exchange.pending import Batch, Pending


def ups(count: int, text: str = "") -> dict[str, UpValue]:
    return {f"pending.key.{n}": UpValue("last", text or n) for n in range(count)}


def test_over_the_bytes_the_session_that_has_waited_longest_goes() -> None:
    pending = Pending(budget=100_000)
    for n in range(50):
        pending.put(("default", f"s{n}"), Batch(ups(20, "x" * 256)))
        assert pending.bytes <= 100_000
    kept = [n for n in range(50) if pending.waits(("default", f"s{n}"))]
    assert 5 < len(kept) < 15
    assert kept == list(range(50 - len(kept), 50))


def test_what_alone_is_too_much_does_not_wait() -> None:
    pending = Pending(budget=10_000)
    pending.put(("default", "small"), Batch(ups(1)))
    pending.put(("default", "large"), Batch(ups(60, "x" * 256)))
    assert (len(pending), pending.bytes) == (0, 0)


def test_by_default_the_worst_that_can_wait_takes_eight_mebibytes() -> None:
    pending = Pending()
    for n in range(600):
        for _ in range(4):
            pending.put(("default", f"s{n}"), Batch(ups(64, "x" * 256), event=n + 1, shown=True))
    assert 2**22 < pending.bytes <= 2**23


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 5), st.booleans()), max_size=40))
def test_the_accounts_balance(steps: list[tuple[str, bool, int, bool]]) -> None:
    pending = Pending(sessions=2, budget=6000)
    for session, put, count, shown in steps:
        key = ("default", session)
        if put:
            pending.put(key, Batch(ups(count), event=1 if shown else 0, shown=shown), Window(1, 2, version=count))
        else:
            pending.take(key, ups(count))
        assert 0 <= pending.bytes <= 6000
    for session in "abc":
        while pending.waits(("default", session)):
            pending.take(("default", session), {})
    assert (len(pending), pending.bytes) == (0, 0)


def test_what_it_is_said_to_cost_is_what_it_takes_in_memory() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        pending = Pending()
        for n in range(2000):
            values = {f"pending.key.{k}": UpValue("sum", 2**40 + n + k) for k in range(5)}
            pending.put(("default", f"session-{n}"), Batch(values, event=2**60 + n))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pending.bytes == pytest.approx(after - before, rel=0.25)
