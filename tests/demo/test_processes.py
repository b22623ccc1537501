"""Child processes: ready by their own word, ended by their handle, and telling why if they could not start."""

from __future__ import annotations

import re

import pytest

from otelctx.demo.processes import Process, python
from otelctx.errors import ConfigError

READY = re.compile(r"ready at ([\d.]+):(\d+)")
SERVE = "print('loading', flush=True); print('ready at 127.0.0.1:81', flush=True); import time; time.sleep(60)"


async def test_it_is_ready_by_its_own_word_and_ends_when_it_is_told() -> None:
    process = Process("it", python("-c", SERVE), {})
    said: list[str] = []
    assert process.status is None
    await process.start(READY, said.append, within=30)
    assert (process.address, said, process.status) == (("127.0.0.1", 81), ["loading"], None)
    await process.stop()
    assert process.status == -15
    await process.stop()


@pytest.mark.parametrize(
    ("code", "within", "words"),
    [
        ("import sys; print('no such model'); sys.exit(1)", 30, "ended before it was ready; it said:\n  no such model"),
        ("print('loading', flush=True); import time; time.sleep(60)", 0.5, "was not ready after"),
    ],
)
async def test_what_does_not_start_says_why(code: str, within: float, words: str) -> None:
    process = Process("the worker", python("-c", code), {})
    with pytest.raises(ConfigError, match="the worker ") as raised:
        await process.start(READY, lambda line: None, within=within)
    assert words in raised.value.message
    await process.stop()
    assert process.status is not None


async def test_what_was_never_started_is_stopped_at_once() -> None:
    await Process("it", python("-c", "pass"), {}).stop()
