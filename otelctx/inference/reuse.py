"""Why a turn found less of its prompt computed than it might have: one of a few words, for its span. Pure.

Only rows of the turn's owner are looked at, so that nothing is told of anybody else: that a row was taken says that the
server was busy, and not by whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["NOTHING", "Hope", "Loss", "Miss", "miss"]

Loss = Literal["cold", "row_taken", "dropped"]
Miss = Literal["cold", "row_taken", "dropped", "truncated", "prefix_mismatch", "edited", "retokenised"]
"""
``cold``: nothing was to be expected: it is the first turn of a conversation, or its first in this process;
``row_taken``: another turn needed the row;
``dropped``: its KV was forgotten: to save memory, because it had gone bad, or for an answer that slid and was taken
back;
``truncated``: the oldest exchanges left the prompt, so that what follows them stands elsewhere;
``prefix_mismatch``: a history came, and no row holds more of it than its head;
``edited``: the history parts from what a row holds: it was changed, or its answers tokenise differently;
``retokenised``: the same of a session, whose history nobody can edit: what is kept of its answer (up to a stop string,
or rendered anew) are other tokens than those that were generated.
"""


@dataclass(frozen=True, slots=True)
class Hope:
    """What a turn may hope for, in tokens: ``head`` of its prompt are the system's, ``kept`` its session had before it.
    ``history``: whether the prompt has more than its first exchange; ``truncated``: whether older ones were dropped;
    ``row``: which one its session had last.
    """

    head: int = 0
    kept: int = 0
    history: bool = False
    truncated: bool = False
    row: int | None = None


NOTHING: Final = Hope()


def miss(hope: Hope, *, prompt: int, shared: int, held: int, loss: Loss | None = None) -> Miss | None:
    """``None`` if all was reused that could be. ``shared`` of the ``prompt`` tokens are the most that any row of the
    owner's holds, and that row, or the fullest one if none is shared, holds ``held``; ``loss`` is what became of the
    row that the turn might have had.

    One token of a prompt is always fed, and the last token of an answer is chosen, not fed.
    """
    if shared >= prompt - 1:
        return None
    if hope.kept:
        if shared >= hope.kept - 1:
            return None
        return "truncated" if hope.truncated else (loss or "retokenised")
    if not hope.history:
        return "cold" if shared <= hope.head else None
    if hope.truncated:
        return "truncated"
    if not held:
        return loss or "cold"
    if shared >= held:
        return None
    return "prefix_mismatch" if shared <= hope.head else "edited"
