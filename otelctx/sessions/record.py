"""What is kept of a session beside its window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from otelctx.sessions.window import TokenWindow

__all__ = ["Ended", "SessionRecord"]

Ended = Literal["idle", "capacity", "deleted", "unused"]


@dataclass(slots=True, eq=False)
class SessionRecord:
    """One conversation.

    ``owner`` is recorded at creation and checked at each use. ``created`` and ``used`` are monotonic seconds;
    ``generation`` orders sessions that had the same id one after the other. ``pending`` are token ids that are
    committed but not in the KV yet: they are fed first in the next turn. ``row`` is where its KV was last, a hint.
    ``system`` is the text of the pinned head, so that another system prompt in a later turn can be told. Usage totals
    are tokens over all turns. ``leases`` counts the turn that runs and those that wait for it to end; while it is not
    0, the session stays. ``ended`` says why a session that left the store did so. ``messages`` are the conversation as
    (role, text), where the chat template depends on all of it, so that each turn renders it anew; else there are none.
    """

    session_id: str
    owner: str
    window: TokenWindow
    created: float
    used: float
    generation: int = 1
    turns: int = 0
    pending: tuple[int, ...] = ()
    row: int | None = None
    system: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    leases: int = 0
    ended: Ended | None = None
    messages: tuple[tuple[str, str], ...] = ()
