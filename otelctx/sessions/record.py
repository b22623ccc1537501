"""What is kept of a session beside its window."""

from __future__ import annotations

from dataclasses import dataclass

from otelctx.sessions.window import TokenWindow

__all__ = ["SessionRecord"]


@dataclass(slots=True, eq=False)
class SessionRecord:
    """One conversation.

    ``owner`` is recorded at creation and checked at each use. ``pending`` are token ids that are committed but not in
    the KV yet: they are fed first in the next turn. ``row`` is where its KV was last, a hint. ``system`` is the text
    of the pinned head, so that another system prompt in a later turn can be told. Usage totals are tokens over all
    turns.
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
