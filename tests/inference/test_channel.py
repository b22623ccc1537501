"""One reader, never more than one piece to read, and the end or the error after all text."""

from __future__ import annotations

import asyncio

import pytest

from otelctx.inference.channel import Channel
from otelctx.inference.turn import Chunk, TurnResult, Usage

RESULT = TurnResult("stop", "completed", Usage(1, 2))


async def test_unread_text_is_joined() -> None:
    channel = Channel()
    for _ in range(1000):
        channel.put("ab")
    assert channel.unread == 2000
    assert (await channel.get()).text == "ab" * 1000
    assert channel.unread == 0
    channel.put("c")
    channel.end(RESULT)
    last = await channel.get()
    assert (last.text, last.finish_reason, last.result) == ("c", "stop", RESULT)


async def test_a_waiting_reader_is_woken_by_text_and_by_nothing_less() -> None:
    channel = Channel()
    reading = asyncio.create_task(channel.get())
    await asyncio.sleep(0)
    channel.put("")
    await asyncio.sleep(0)
    assert not reading.done()
    channel.put("a")
    channel.put("b")
    assert (await reading).text == "ab"


async def test_an_error_comes_after_what_was_said() -> None:
    channel = Channel()
    channel.put("half")
    channel.fail(ValueError("gone"))
    assert (await channel.get()).text == "half"
    with pytest.raises(ValueError, match="gone"):
        await channel.get()


async def test_a_cancelled_reader_loses_nothing() -> None:
    channel = Channel()
    reading = asyncio.create_task(channel.get())
    await asyncio.sleep(0)
    channel.put("a")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (await channel.get()).text == "a"


async def test_an_error_takes_an_unread_result_back() -> None:
    """What has been taken back is not given as an answer: the reader gets the text, and then the error."""
    channel = Channel()
    channel.put("half")
    channel.end(RESULT)
    channel.fail(ValueError("taken back"))
    channel.fail(ValueError("once more"))
    channel.end(RESULT)
    assert await channel.get() == Chunk("half")
    with pytest.raises(ValueError, match="taken back"):
        await channel.get()
