"""The engine's inner loop, without its queues and threads: scheduler, runner, sampler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter

from otelctx.inference.runner import Runner
from otelctx.inference.sampling import Params, RowState, Sampler
from otelctx.inference.scheduler import Limits, Scheduler

__all__ = ["Loop", "crop", "fill"]


def fill(runner: Runner, row: int, ids: Sequence[int]) -> None:
    """Prefill ``ids`` into ``row``, in the chunks that the scheduler takes when nothing else runs."""
    chunk = Limits().idle_chunk
    for at in range(0, len(ids), chunk):
        runner.step([(row, ids[at : at + chunk])])


class Loop:
    """Turns on rows of ``runner``, one token each a step. ``last`` are the tokens that they feed first."""

    def __init__(self, runner: Runner, last: Mapping[int, int], params: Params) -> None:
        self._runner = runner
        self._params = params
        self._sampler = Sampler()
        self._scheduler = Scheduler(Limits(rows=runner.rows))
        self._ids: dict[int, Sequence[int]] = {}
        self._states: dict[int, RowState] = {}
        self.sampling = 0.0  # seconds spent in the sampler so far
        for row, token in last.items():
            self.submit(row, [token])

    def submit(self, row: int, ids: Sequence[int]) -> None:
        """Let the turn on ``row`` feed ``ids`` and then go on."""
        self._scheduler.submit(row)
        if self._scheduler.admit() != row:
            raise RuntimeError(f"row {row} is not free")
        self._scheduler.start(row, 0, len(ids))
        self._ids[row] = ids
        self._states[row] = RowState(self._params)

    def step(self) -> list[int]:
        """One forward and the choice of tokens; returns the rows that have a new one."""
        work = self._scheduler.step()
        result = self._runner.step([(item.turn, self._ids[item.turn][item.start :][: item.count]) for item in work])
        ready = self._scheduler.fed(work)
        if not ready:
            return ready
        began = perf_counter()
        lines = {item.turn: line for line, item in enumerate(work)}
        logits = result.logits if len(ready) == len(work) else result.logits[[lines[row] for row in ready]]
        drawn = self._sampler.sample(logits, [self._states[row] for row in ready])
        self.sampling += perf_counter() - began
        for row, token in zip(ready, drawn, strict=True):
            self._ids[row] = [token]
        return ready


def crop(runner: Runner, rows: Iterable[int], length: int) -> None:
    """Back to the first ``length`` tokens of each of ``rows``."""
    for row in rows:
        runner.kv.crop(row, length)
