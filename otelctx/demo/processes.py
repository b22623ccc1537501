"""The demo's other processes: started with an environment of their own, stopped by their handle."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from otelctx.errors import ConfigError

__all__ = ["Process", "python"]

_TAIL: Final = 20  # lines of output that are kept for when something goes wrong
_STOP: Final = 8.0  # seconds that a process gets to end by itself


class Process:
    """One child process whose output is read line by line."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.address: tuple[str, int] | None = None
        self._command = command
        self._environment = dict(environment)
        self._process: asyncio.subprocess.Process | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._reader: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def start(self, ready: re.Pattern[str], say: Callable[[str], None], *, within: float) -> None:
        """Run it and wait for the line that ``ready`` matches; its groups are host and port.

        Lines before that go to ``say``. Raises :class:`~otelctx.errors.ConfigError` with the end of its output if it
        ends first, or isn't ready ``within`` seconds.
        """
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
        )
        self._reader = asyncio.create_task(self._read(self._process, ready, say))
        try:
            async with asyncio.timeout(within):
                await self._ready.wait()
        except TimeoutError:
            raise ConfigError(f"{self.name} was not ready after {within:.0f} s{self.output()}") from None
        if self.address is None:
            raise ConfigError(f"{self.name} ended before it was ready{self.output()}")

    async def stop(self) -> None:
        """Ask it to end, and end it if it doesn't."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(_STOP):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        finally:
            if self._reader is not None:
                await self._reader

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; ``None`` while it runs."""
        return None if self._process is None else self._process.returncode

    def output(self) -> str:
        """Its last lines, for a message."""
        return "; it said:" + "".join(f"\n  {line}" for line in self._tail) if self._tail else ""

    async def _read(
        self, process: asyncio.subprocess.Process, ready: re.Pattern[str], say: Callable[[str], None]
    ) -> None:
        if process.stdout is None:
            raise RuntimeError("the process was started without a pipe")
        async for data in process.stdout:
            line = data.decode("utf-8", "replace").rstrip()
            self._tail.append(line)
            if self._ready.is_set():
                continue
            if match := ready.search(line):
                self.address = (match[1], int(match[2]))
                self._ready.set()
            else:
                say(line)
        self._ready.set()


def python(*arguments: str) -> list[str]:
    """A command line that runs this interpreter."""
    return [sys.executable, "-u", *arguments]
