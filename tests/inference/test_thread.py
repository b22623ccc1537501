"""What the engine's thread tells the event loop arrives, whatever became of somebody who was to be told."""

from __future__ import annotations

import asyncio

import pytest

from otelctx.inference.thread import EngineThread


class Nothing:
    """A worker without work."""

    idle = True

    def step(self) -> None:
        raise AssertionError("there is nothing to compute")

    def fail_all(self) -> None:
        raise AssertionError("nothing failed")


async def test_one_report_that_fails_keeps_no_other_from_being_told(caplog: pytest.LogCaptureFixture) -> None:
    """All reports of a step arrive in one call: another turn's must not wait for ever because one could not be told."""
    thread = EngineThread(asyncio.get_running_loop(), "test")
    thread.start(Nothing())
    told = asyncio.Event()
    gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    gone.cancel()

    def both() -> None:
        thread.report(lambda: gone.set_result(1))
        thread.report(told.set)

    thread.command(both)
    async with asyncio.timeout(10):
        await told.wait()
    await thread.stop()
    assert "could not be told" in caplog.text
    assert thread.broken is None


class Spoilt(Nothing):
    """Whose turns can't be told."""

    def fail_all(self) -> None:
        raise ValueError("nor this")


@pytest.mark.parametrize("error", [ValueError("a mistake\nin it"), SystemExit(3), MemoryError()])
async def test_a_thread_that_broke_says_why_and_still_takes_what_settles_turns(error: BaseException) -> None:
    """Readers wait for their turns to be settled: what is asked for after the failure is done all the same."""
    thread = EngineThread(asyncio.get_running_loop(), "test")
    thread.start(Spoilt())
    settled = asyncio.Event()

    def fail() -> None:
        raise error

    thread.command(fail)
    thread.command(lambda: thread.report(settled.set))
    async with asyncio.timeout(10):
        await settled.wait()
    assert thread.alive
    assert thread.broken in ("ValueError: a mistake", "SystemExit: 3", "MemoryError")
    assert thread.broken.startswith(type(error).__name__)
    assert thread.poisoned is None
    await thread.stop()
