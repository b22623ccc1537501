"""The next token of every row, so that a row whose token can't be chosen fails alone.

All rows are sampled at once; only if that raises, each by itself. A request's random number stays the same until its
token is chosen, so the others get the token that they would have got.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from otelctx.inference.faults import Broken, Failure, kind_of
from otelctx.inference.sampling import RowState

__all__ = ["Draws", "draw"]

_log = logging.getLogger(__name__)


class Draws(Protocol):
    """A sampler; see :class:`~otelctx.inference.sampling.Sampler`."""

    def sample(self, logits: Tensor, rows: Sequence[RowState]) -> list[int]: ...


def draw(sampler: Draws, logits: Tensor, states: Sequence[RowState]) -> tuple[list[int], dict[int, Failure]]:
    """A token for each line of ``logits``, float32 ``[len(states), vocab]``; those in the failures have none.

    Raises:
        Broken: the device is poisoned, or of several rows none could be sampled.
    """
    failures: dict[int, Failure] = {}
    try:
        return sampler.sample(logits, states), failures
    except Exception as error:
        trouble = _failure(error)
    if len(states) == 1:
        return [0], {0: trouble}
    tokens = []
    for line, state in enumerate(states):
        try:
            (token,) = sampler.sample(logits[line : line + 1], [state])
        except Exception as error:
            token, failures[line] = 0, _failure(error)
        tokens.append(token)
    if len(failures) == len(states) and "memory" not in failures.values():
        raise Broken("no row's token could be chosen", poisoned=False)
    return tokens, failures


def _failure(error: Exception) -> Failure:
    kind = kind_of(error)
    if kind == "poisoned":
        raise Broken(f"{type(error).__name__}: {error}", poisoned=True) from None
    _log.warning("a token could not be chosen: %s", "".join(traceback.format_exception(error)))
    return "memory" if kind == "memory" else "error"
