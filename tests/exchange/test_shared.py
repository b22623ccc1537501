"""The shared tier: what it costs a request, and what is believed of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.context.state import EMPTY, State
from otelctx.delta.codec import decode_frame, encode_frame
from otelctx.delta.limits import MAX_FRAME_BYTES, Limits
from otelctx.delta.messages import delta, full
from otelctx.exchange.shared import SharedTier

STATE = EMPTY.put("session.id", "s").put("user.tier", "gold")
OTHER = STATE.put("user.tier", "silver")
KEY = f"otelctx:base:default:{STATE.root[:8].hex()}"
UNIX = 1_800_000_000.0


async def settled() -> None:
    """Let whatever can go on go on."""
    for _ in range(5):
        await asyncio.sleep(0)


def patient(**limits: Any) -> Limits:
    """No deadline, for tests that are not about it: this machine may be busy."""
    return Limits(**{"shared_deadline": 60.0, **limits})


async def stored(engine: Any, state: State = STATE, clock: Callable[[], float] = lambda: 0.0) -> SharedTier:
    tier = SharedTier(engine, patient(), clock=clock)
    tier.share("default", state)
    await tier.close()
    return tier


async def test_what_is_stored_is_found_by_root_or_by_its_first_bytes_in_its_domain_only(engine: Any) -> None:
    tier = await stored(engine)
    for root in (STATE.root, STATE.root[:8]):
        assert await tier.load("default", root) == STATE
        assert await tier.load("another", root) is None
    assert await tier.load("default", STATE.root[:8] + bytes(8)) is None
    assert await tier.load("default", OTHER.root) is None
    assert engine.ttls == [3600.0]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff" * 40,
        bytes(4000),
        encode_frame(full(OTHER)),
        encode_frame(delta(OTHER, STATE)),
        encode_frame(full(STATE)).replace(b"gold", b"lead"),
    ],
    ids=["nothing", "rubbish", "too much", "another state", "a delta", "another value"],
)
async def test_nothing_is_believed_that_does_not_hash_to_the_root_that_was_asked_for(engine: Any, value: bytes) -> None:
    engine.values[KEY] = value
    assert await SharedTier(engine, patient()).load("default", STATE.root) is None


async def test_many_that_miss_a_base_ask_once_and_one_that_leaves_takes_nobody_along(engine: Any) -> None:
    tier = await stored(engine)
    engine.gate.clear()
    waiting = [asyncio.create_task(tier.load("default", STATE.root)) for _ in range(10)]
    await settled()
    waiting[0].cancel()
    await settled()
    engine.gate.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [STATE] * 9
    assert engine.loads == 1


async def test_no_request_waits_longer_than_the_deadline(engine: Any) -> None:
    assert Limits().shared_deadline == 0.010
    tier = await stored(engine)
    tier._limits = Limits(shared_deadline=0.001)
    engine.gate.clear()
    assert await tier.load("default", STATE.root) is None


async def test_a_call_that_nobody_waits_for_any_more_ends_too(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otelctx.exchange.shared._ABANDONED", 0.001)
    tier = SharedTier(engine, patient())
    engine.gate.clear()
    assert await tier.load("default", STATE.root) is None
    tier.share("default", STATE)
    await tier.close()
    assert (tier._loads, tier._stores, tier.shared("default", STATE.root)) == ({}, {}, False)


async def test_an_engine_that_keeps_failing_is_left_alone_for_a_while(engine: Any) -> None:
    now = 0.0
    tier = await stored(engine, clock=lambda: now)
    engine.error = OSError("gone")
    for _ in range(20):
        assert await tier.load("default", STATE.root) is None
        tier.share("default", OTHER)
        await tier.close()
    assert engine.loads == 3  # with two failed writes between them, five failures in a row
    assert engine.stores == 1 + 2
    now = 1.0
    assert await tier.load("default", STATE.root) is None, "one more failure is the first of five again"
    engine.error = None
    assert await tier.load("default", STATE.root) == STATE


@pytest.mark.parametrize("writes", [False, True])
async def test_failures_count_in_a_row_only(engine: Any, writes: bool) -> None:
    tier = await stored(engine)
    for n in range(10):
        engine.error = OSError("gone")
        for _ in range(4):
            assert await tier.load("default", STATE.root) is None
        engine.error = None
        if writes:
            tier.share("default", STATE.put("n", n))
            await tier.close()
        else:
            assert await tier.load("default", STATE.root) == STATE
    assert engine.stores == (11 if writes else 1)


async def test_one_slow_call_is_one_failure_however_many_wait_for_it(engine: Any) -> None:
    tier = await stored(engine)
    tier._limits = Limits(shared_deadline=0.001)
    engine.gate.clear()
    waiting = [asyncio.create_task(tier.load("default", STATE.root)) for _ in range(20)]
    assert await asyncio.gather(*waiting) == [None] * 20
    assert engine.loads == 1
    tier._limits = patient()
    engine.gate.set()
    assert await tier.load("default", STATE.root) == STATE, "an engine that is slow once is not left alone"


async def test_only_so_many_calls_are_under_way(engine: Any) -> None:
    tier = SharedTier(engine, patient(shared_calls=2))
    engine.gate.clear()
    states = [STATE.put("n", n) for n in range(5)]
    for state in states:
        tier.share("default", state)
    loads = [asyncio.create_task(tier.load("default", state.root)) for state in states]
    await settled()
    assert (len(tier._stores), len(tier._loads)) == (2, 2)
    assert [task.done() for task in loads] == [False, False, True, True, True]
    engine.gate.set()
    await asyncio.gather(*loads)
    await tier.close()


async def test_shared_is_said_of_what_is_confirmed_and_kept_and_it_is_kept_while_it_is_used(engine: Any) -> None:
    now = 0.0
    tier = SharedTier(engine, patient(), clock=lambda: now)
    engine.gate.clear()
    tier.share("default", STATE)
    await settled()
    assert not tier.shared("default", STATE.root)
    engine.gate.set()
    await tier.close()
    assert tier.shared("default", STATE.root)
    assert not tier.shared("another", STATE.root)
    for at, writes in ((1799.0, 1), (1800.0, 2), (1801.0, 2)):
        now = at
        tier.share("default", STATE)
        await tier.close()
        assert len(engine.ttls) == writes
    now = 1800.0 + 3599.0
    assert tier.shared("default", STATE.root)
    now = 1800.0 + 3600.0
    assert not tier.shared("default", STATE.root)


async def test_the_same_is_written_once_at_a_time(engine: Any) -> None:
    tier = SharedTier(engine, patient())
    engine.gate.clear()
    for _ in range(3):
        tier.share("default", STATE)
        await settled()
    assert engine.stores == 1
    engine.gate.set()
    await tier.close()


async def test_what_is_kept_counts_from_when_its_write_began(engine: Any) -> None:
    """The engine may have begun to count then, however late it has said so."""
    now = 0.0
    tier = SharedTier(engine, patient(), clock=lambda: now)
    engine.gate.clear()
    tier.share("default", STATE)
    await settled()
    now = 100.0
    engine.gate.set()
    await tier.close()
    now = 3599.0
    assert tier.shared("default", STATE.root)
    now = 3600.0
    assert not tier.shared("default", STATE.root)


async def test_only_so_many_confirmations_are_remembered(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten first, and only costs a FULL frame."""
    monkeypatch.setattr("otelctx.exchange.shared._CONFIRMED", 2)
    tier = SharedTier(engine, patient())
    states = [STATE.put("n", n) for n in range(3)]
    for state in states:
        tier.share("default", state)
        await tier.close()
    assert [tier.shared("default", state.root) for state in states] == [False, True, True]


async def test_what_is_too_long_is_not_even_parsed(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []

    def seen(value: bytes) -> Any:
        parsed.append(len(value))
        return decode_frame(value)

    monkeypatch.setattr("otelctx.exchange.shared.decode_frame", seen)
    tier = await stored(engine)
    assert await tier.load("default", STATE.root) == STATE
    engine.values[KEY] = bytes(MAX_FRAME_BYTES + 1)
    assert await tier.load("default", STATE.root) is None
    assert len(parsed) == 1


async def test_each_event_loop_waits_for_calls_of_its_own(make_engine: Any) -> None:
    """A task of one can't be awaited in another."""
    here, going = asyncio.get_running_loop(), asyncio.Event()

    class Loops(make_engine):
        async def load(self, key: str) -> bytes | None:
            if asyncio.get_running_loop() is here:
                await going.wait()
            return self.values.get(key)

    engine = Loops()
    tier = await stored(engine)
    waiting = asyncio.create_task(tier.load("default", STATE.root))
    await settled()
    assert await asyncio.to_thread(lambda: asyncio.run(tier.load("default", STATE.root))) == STATE
    going.set()
    assert await waiting == STATE


async def test_a_write_that_fails_is_not_claimed(engine: Any) -> None:
    engine.error = OSError("full")
    tier = await stored(engine)
    assert not tier.shared("default", STATE.root)


class Idle(asyncio.SelectorEventLoop):
    """Its time passes only while there is nothing to do, and then at once."""

    def __init__(self) -> None:
        self._passed = 0.0
        super().__init__()
        select = self._selector.select

        def at_once(timeout: float | None = None) -> Any:
            self._passed += timeout or 0.0
            return select(0)

        self._selector.select = at_once

    def time(self) -> float:
        return self._passed


def test_a_store_that_hangs_costs_each_request_the_deadline_at_most(make_engine: Any) -> None:
    """A hundred hang together, not in turn."""

    async def hundred() -> float:
        engine = make_engine()
        engine.gate.clear()
        tier = SharedTier(engine, Limits(shared_failures=10**6, shared_calls=100))
        found = await asyncio.gather(*(tier.load("default", STATE.put("n", n).root) for n in range(100)))
        assert found == [None] * 100
        assert engine.loads == 100
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=Idle) as runner:
        assert runner.run(hundred()) == pytest.approx(Limits().shared_deadline, rel=0.1)
