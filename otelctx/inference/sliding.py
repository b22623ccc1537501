"""Answers that go on when the window is full: the oldest tokens leave, the others are fed again. Pure.

The context of a turn is its prompt and what it has generated so far, less what has left:

    prompt + generated = pinned ·· (evicted) ·· the rest          context = pinned + rest ≤ window

A block leaves at a time, because everything behind it moves and must be computed anew: that is exact, and a quarter of
the window keeps its cost near a tenth of the time. The window of a session is not touched before the answer ends, so
that taking a turn back stays what it was; :func:`keep` then brings the window to where the answer has got.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otelctx.sessions.window import TokenWindow, Tx

__all__ = ["Slide", "keep"]

Tokens = NDArray[np.int32]


@dataclass(slots=True)
class Slide:
    """The sliding of one turn: ``evicted`` tokens have left its context of at most ``window`` tokens, ``recomputed``
    were fed once more for it. The first ``pinned`` tokens stay."""

    window: int
    pinned: int
    evicted: int = 0
    recomputed: int = 0

    @property
    def block(self) -> int:
        """A quarter of the window; no more than half of what may leave, so that the latest tokens stay in any case."""
        return max(1, min(self.window // 4, (self.window - self.pinned) // 2))

    def due(self, prompt: int, generated: int) -> bool:
        """Whether there is no room for a token after these. All are in context then, and the window has them all."""
        return prompt + generated - self.evicted >= self.window

    def slide(self, prompt: Tokens, generated: Sequence[int]) -> Tokens:
        """Evict a block. Returns the context, int32: the pinned tokens are as they were, the others are to be fed."""
        context = len(prompt) + len(generated) - self.evicted - self.block
        rest = context - self.pinned
        self.evicted += self.block
        self.recomputed += rest
        answer = generated[max(0, len(generated) - rest) :]
        question = prompt[len(prompt) - (rest - len(answer)) :]
        return np.concatenate((prompt[: self.pinned], question, np.asarray(answer, np.int32)))


def keep(window: TokenWindow, tx: Tx, answer: Sequence[int], evicted: int) -> None:
    """Append ``answer``, of which as much is kept as there is room for, when ``evicted`` tokens after the pinned ones
    have left meanwhile: tokens that the window holds, and then the beginning of the answer itself."""
    movable = window.kept - window.pinned
    # A stop string may have taken back what had left already.
    evicted = min(evicted, movable + len(answer))
    if evicted <= movable:
        if evicted:
            window.evict_tokens(tx, evicted)
        window.append(tx, answer[: window.limit - window.kept])
        return
    pinned = window.tokens()[: window.pinned]
    rest = np.asarray(answer[evicted - movable :][: window.limit - window.pinned], np.int32)
    window.replace(tx, np.concatenate((pinned, rest)), evicted=evicted, pinned=window.pinned)
