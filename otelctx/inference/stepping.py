"""A step that survives what goes wrong in it: it is run again in halves until only what can't be run alone has failed.

What the kinds of failures mean stands in :mod:`~otelctx.inference.faults`. A lack of memory also halves the tokens of a
row's chunk, and lowers what the next forwards are given; other errors are looked for row by row. When nothing of a
step can be run, a single token in an emptied row tells whether it is the engine that is broken or the requests.
"""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from otelctx.inference.ceiling import Ceiling
from otelctx.inference.faults import Broken, Failure, Kind, kind_of
from otelctx.inference.kvrows import Work
from otelctx.inference.runner import Runner

__all__ = ["Stepped", "Stepper"]

_log = logging.getLogger(__name__)

_PROBE: Final = (0,)  # the one token that every vocabulary has


@dataclass(frozen=True, slots=True)
class Stepped:
    """``counts``: how many tokens of each item were fed, in the order of the work; ``logits``: float32
    ``[len(work), vocab]``, to be read only for items without a failure; ``failures``: by index."""

    counts: list[int]
    logits: Tensor
    failures: dict[int, Failure]


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A forward's exception, without the frames that hold its tensors."""

    kind: Kind
    text: str


class Stepper:
    """Steps of one runner. Belongs to the engine's thread."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._ceiling = Ceiling()

    def run(self, work: Work) -> Stepped:
        """Feed ``work``, or as much of it as there is memory for; an item that was cut short continues in the next
        step. Rows with the failures ``not_finite`` and ``error`` are empty now.

        Raises:
            Broken: the device is poisoned, or not even a token by itself can be fed.
        """
        done: list[Stepped] = []
        start = 0
        for counts in self._ceiling.parts([len(ids) for _, ids in work]):
            items = work[start : start + len(counts)]
            done.append(self._feed([(row, ids[:count]) for (row, ids), count in zip(items, counts, strict=True)]))
            start += len(counts)
        stepped = _joined(done)
        spoilt = [index for index, failure in stepped.failures.items() if failure == "error"]
        for index in spoilt:
            self._runner.clear(work[index][0])
        if len(spoilt) == len(work):
            self._probe(work[spoilt[0]][0])
        return stepped

    def _feed(self, work: Work) -> Stepped:
        found = self._attempt(work)
        if isinstance(found, Stepped):
            return found
        if len(work) > 1:
            middle = len(work) // 2
            return _joined([self._feed(work[:middle]), self._feed(work[middle:])])
        ((row, ids),) = work
        if found.kind == "memory":
            if len(ids) > 1:
                return self._feed([(row, ids[: len(ids) // 2])])
            gc.collect()  # what hangs together in a circle; too slow to be done for more than the last resort
            again = self._attempt(work)
            if isinstance(again, Stepped):
                return again
            found = again
        _log.warning("a request failed in its step: %s", found.text)
        failure: Failure = "memory" if found.kind == "memory" else "error"
        return Stepped([0], torch.zeros(1, self._runner.vocab), {0: failure})

    def _attempt(self, work: Work) -> Stepped | _Trouble:
        """One forward. Raises :class:`Broken` only if the device is poisoned."""
        try:
            result = self._runner.step(work)
        except Exception as error:
            trouble = _trouble(error)
            # Leaving this block drops the error, and with it the frames that hold the failed forward's tensors.
        else:
            self._ceiling.passed()
            bad: dict[int, Failure] = {i: "not_finite" for i, (row, _) in enumerate(work) if row in result.bad_rows}
            return Stepped([len(ids) for _, ids in work], result.logits, bad)
        if trouble.kind == "poisoned":
            raise Broken(trouble.text, poisoned=True)
        if trouble.kind == "memory":
            self._ceiling.failed(sum(len(ids) for _, ids in work))
            self._runner.free_unused()
        return trouble

    def _probe(self, row: int) -> None:
        """Nothing of a step could be run: was it what was fed, or does nothing run any more?"""
        found = self._attempt([(row, _PROBE)])
        if isinstance(found, _Trouble) and found.kind == "error":
            raise Broken(found.text, poisoned=False)
        self._runner.clear(row)


def _trouble(error: Exception) -> _Trouble:
    kind = kind_of(error)
    # The text of a traceback holds nothing; the traceback itself would, in a log record that somebody keeps.
    text = f"{type(error).__name__}: {error}"
    return _Trouble(kind, text if kind == "memory" else f"{text}\n{''.join(traceback.format_exception(error))}")


def _joined(parts: Sequence[Stepped]) -> Stepped:
    if len(parts) == 1:
        return parts[0]
    counts: list[int] = []
    failures: dict[int, Failure] = {}
    for part in parts:
        failures |= {len(counts) + index: failure for index, failure in part.failures.items()}
        counts += part.counts
    device = parts[0].logits.device
    return Stepped(counts, torch.cat([part.logits.to(device) for part in parts]), failures)
