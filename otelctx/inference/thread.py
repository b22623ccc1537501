"""The engine's thread: takes commands, steps while there is something to compute, and reports once per step.

Everything that touches the model, the rows or a leased window runs here, wholly inside ``torch.inference_mode``.
Reports are delivered to the event loop by one ``call_soon_threadsafe`` per step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Protocol

import torch

from otelctx.inference.faults import kind_of

__all__ = ["EngineThread", "Worker"]

_log = logging.getLogger(__name__)

Call = Callable[[], None]


class Worker(Protocol):
    """What the thread drives."""

    @property
    def idle(self) -> bool: ...
    def step(self) -> None: ...
    def fail_all(self) -> None: ...


class EngineThread:
    """One thread for one worker and one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self.loop = loop
        self._commands: SimpleQueue[Call | None] = SimpleQueue()
        self._reports: list[Call] = []
        self._ended = Event()
        self._worker: Worker | None = None
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self.broken: str | None = None
        """Why it can't be relied on any more: something went wrong that was no single request's."""
        self.poisoned: str | None = None
        """The same, where the device is lost to the whole process."""

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self, worker: Worker) -> None:
        self._worker = worker
        self._thread.start()

    def command(self, call: Call) -> None:
        """Have ``call`` run on the thread before its next step. From any thread."""
        self._commands.put(call)

    def report(self, call: Call) -> None:
        """Have ``call`` run on the event loop after this step. From the engine's thread."""
        self._reports.append(call)

    async def stop(self) -> None:
        """End the thread once it has taken the commands before this one."""
        if self.alive:
            self._commands.put(None)
            await asyncio.to_thread(self._ended.wait)
            self._thread.join()

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._take_commands():
                    self._flush()  # what was refused need not wait for a step
                    self._guarded(self._running().step)
                    self._flush()
            self._flush()
        finally:
            self._ended.set()

    def _take_commands(self) -> bool:
        """Run what has been asked for; waits if there is nothing else to do. False: it is time to stop."""
        worker = self._running()
        while True:
            if self._commands.empty():
                if not worker.idle:
                    return True
                self._flush()
            call = self._commands.get()
            if call is None:
                return False
            self._guarded(call)

    def _guarded(self, call: Call) -> None:
        """What comes out here is no single request's: those in flight fail, and no more are taken. The thread goes on,
        an exit included: readers still wait for it to settle their turns."""
        try:
            call()
        except BaseException as error:
            _log.exception("the engine failed; requests in flight fail and no more are taken")
            reason = str(error).partition("\n")[0]
            if kind_of(error) == "poisoned":
                self.poisoned = reason
            self.broken = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
            # Its frames hold the failed step's tensors.
            error.__traceback__ = None
            try:
                self._running().fail_all()
            except Exception:
                _log.exception("the requests in flight could not all be told")

    def _flush(self) -> None:
        if not self._reports:
            return
        reports, self._reports = self._reports, []
        try:
            self.loop.call_soon_threadsafe(_deliver, reports)
        except RuntimeError:
            # The loop is closed, and with it everybody who could have been told.
            _log.debug("%d reports came after the event loop had closed", len(reports))

    def _running(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("the thread has no worker yet")
        return self._worker


def _deliver(reports: list[Call]) -> None:
    for report in reports:
        try:
            report()
        except Exception:
            # The others are other turns', which would wait for theirs for ever.
            _log.exception("what the engine had to tell could not be told")
