"""A step that survives a lack of memory: it is run again in halves until only what can't be run alone has failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from otelctx.inference.kvrows import Work
from otelctx.inference.runner import Runner, is_out_of_memory

__all__ = ["Failure", "Stepped", "run"]

Failure = Literal["memory", "not_finite"]


@dataclass(frozen=True, slots=True)
class Stepped:
    """``counts``: how many tokens of each item were fed, in the order of the work; ``logits``: float32
    ``[len(work), vocab]``, to be read only for items without a failure; ``failures``: by index."""

    counts: list[int]
    logits: Tensor
    failures: dict[int, Failure]


def run(runner: Runner, work: Work) -> Stepped:
    """Feed ``work``, or as much of it as there is memory for; an item that was cut short continues in the next step."""
    try:
        result = runner.step(work)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # Leaving this block drops the error, and with it the frames that hold the failed step's tensors.
    else:
        bad: dict[int, Failure] = {i: "not_finite" for i, (row, _) in enumerate(work) if row in result.bad_rows}
        return Stepped([len(ids) for _, ids in work], result.logits, bad)
    return _smaller(runner, work)


def _smaller(runner: Runner, work: Work) -> Stepped:
    if len(work) > 1:
        middle = len(work) // 2
        return _joined(run(runner, work[:middle]), run(runner, work[middle:]))
    ((row, ids),) = work
    if len(ids) > 1:
        return run(runner, [(row, ids[: len(ids) // 2])])
    return Stepped([0], torch.zeros(1, runner.vocab), {0: "memory"})


def _joined(first: Stepped, second: Stepped) -> Stepped:
    shift = len(first.counts)
    return Stepped(
        first.counts + second.counts,
        torch.cat([first.logits, second.logits.to(first.logits.device)]),
        first.failures | {index + shift: failure for index, failure in second.failures.items()},
    )
