"""What goes wrong in the worker's model, and when: a schedule by seed, and the hooks that carry it out.

Faults come from inside the forward, where real ones do: memory runs out before the last layer, when the rows' new
columns are half written; what is not finite comes out of the first layer, so that every later one writes it into the
row's keys and values.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal

import torch

__all__ = ["EVERY", "Faults", "Schedule"]

Kind = Literal["memory", "stubborn", "not_finite", "slow"]

EVERY: Final[Mapping[Kind, float]] = {"memory": 1.5, "stubborn": 6.0, "not_finite": 3.0, "slow": 5.0}
"""Mean seconds between two faults of a kind.

``memory``: one step finds no memory. ``stubborn``: one row finds none until it is alone and has one token to feed, so
that it must be refused. ``not_finite``: one row. ``slow``: a step takes up to a second longer.
"""

_SLOWEST: Final = 1.0  # seconds


class Schedule:
    """When the next fault of each kind is due. Pure: ``now`` is passed in, in seconds from the start."""

    def __init__(self, seed: int, every: Mapping[Kind, float] = EVERY) -> None:
        self._random = random.Random(seed)
        self._every = dict(every)
        self._next = {kind: self._gap(kind) for kind in self._every}

    def due(self, now: float) -> Kind | None:
        """At most one fault, the one that has been due longest; the next of its kind is counted from ``now``."""
        kind = min(self._next, key=self._next.__getitem__, default=None)
        if kind is None or self._next[kind] > now:
            return None
        self._next[kind] = now + self._gap(kind)
        return kind

    def share(self) -> float:
        """A number from 0 to 1 by the same seed."""
        return self._random.random()

    def _gap(self, kind: Kind) -> float:
        return self._random.expovariate(1 / self._every[kind])


class Faults:
    """In front of a runner's step, and in its model. Belongs to the engine's thread but for :meth:`stop`."""

    def __init__(self, runner: Any, schedule: Schedule) -> None:
        self.done: Counter[str] = Counter()
        self._schedule = schedule
        self._step = runner.step
        self._began = time.monotonic()
        self._stopped = False
        self._stubborn: int | None = None
        self._out_of_memory = False
        self._spoiled: slice | None = None
        layers = runner.model.model.layers
        layers[-1].register_forward_pre_hook(self._before_last)
        layers[0].register_forward_hook(self._after_first)
        runner.step = self.step

    def stop(self) -> None:
        """No more faults."""
        self._stopped = True

    def step(self, work: Any) -> Any:
        if not self._stopped:
            self._prepare(work)
        elif self._stubborn is not None:
            self._stubborn = None
        try:
            return self._step(work)
        finally:
            self._out_of_memory, self._spoiled = False, None

    def _prepare(self, work: Any) -> None:
        kind = self._schedule.due(time.monotonic() - self._began)
        chosen = int(self._schedule.share() * len(work)) if kind else 0
        if kind is not None:
            self.done[kind] += 1
        if kind == "slow":
            time.sleep(self._schedule.share() * _SLOWEST)
        elif kind == "memory":
            self._out_of_memory = True
        elif kind == "stubborn":
            self._stubborn = work[chosen][0]
        elif kind == "not_finite":
            start = sum(len(ids) for _, ids in work[:chosen])
            self._spoiled = slice(start, start + len(work[chosen][1]))
        self._resist(work)

    def _resist(self, work: Any) -> None:
        if self._stubborn is None:
            return
        if any(row == self._stubborn for row, _ in work):
            self._out_of_memory = True
            if len(work) == 1 and len(work[0][1]) == 1:
                self._stubborn = None  # that one was alone: it has been refused, and memory is there again
        elif len(work) > 1:
            self._stubborn = None  # its turn is over

    def _before_last(self, module: Any, arguments: Any) -> None:
        if self._out_of_memory:
            # Both ways in which torch says it.
            if self._schedule.share() < 0.5:
                raise torch.OutOfMemoryError("injected: out of memory")
            raise RuntimeError("injected: DefaultCPUAllocator: can't allocate memory")

    def _after_first(self, module: Any, arguments: Any, output: Any) -> None:
        if self._spoiled is not None:
            hidden = output[0] if isinstance(output, tuple) else output
            hidden[:, self._spoiled] = float("nan")
