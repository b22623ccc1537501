"""The client's side of the books: each request that was sent has exactly one fate. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otelctx.semconv import OUTCOMES

__all__ = ["Asked", "Books", "Ledger", "outcome_of_answer", "outcome_of_error"]

GONE: Final = "gone"
"""We went away before the answer was complete: what the worker made of it, it alone knows."""
UNPARSED: Final = "unparsed"
"""Refused before the guard, which counts nothing."""
BROKEN: Final = "broken"
"""No answer, or one that no request may have."""
FATES: Final = frozenset({*OUTCOMES, GONE, UNPARSED, BROKEN})

_OF_ERROR: Final[Mapping[tuple[int, str], str]] = {
    (400, "context_length_exceeded"): "rejected",
    (409, "session_busy"): "rejected",
    (422, "stream_required"): "shed",
    (422, "breaker_open"): "shed",
    (503, "overloaded"): "shed",
    (503, "insufficient_memory"): "oom",
    (500, "non_finite_logits"): "error",
}
_OF_LIMIT: Final[Mapping[str | None, str]] = {None: "completed", "deadline": "deadline", "memory": "oom"}


def outcome_of_answer(limit: str | None) -> str:
    """The worker's outcome for an answer that came whole and was ended by ``limit``."""
    return _OF_LIMIT.get(limit, "length")


def outcome_of_error(status: int | None, code: str | None, *, timed: bool = False) -> str:
    """The worker's outcome for an error; ``status`` ``None`` is one in mid-stream. What none may have is BROKEN.

    ``timed``: the request had less time than any turn waits for its session, so that it was its deadline that passed
    while the session was busy. To the client that is the same error.
    """
    if timed and (status, code) == (409, "session_busy"):
        return "deadline"
    if status is None:
        return next((outcome for (_, known), outcome in _OF_ERROR.items() if known == code), BROKEN)
    return _OF_ERROR.get((status, code or ""), BROKEN)


@dataclass(slots=True, eq=False)
class Asked:
    """One chat request. ``number`` goes with it as its id; ``first`` is the time to the first text in seconds."""

    number: str
    kind: str
    session: str | None
    fate: str | None = None
    text: str | None = None
    detail: str = ""
    first: float | None = None


@dataclass(frozen=True, slots=True)
class Books:
    """What is left of a ledger at its end. ``certain``: requests by the outcome that the client was told."""

    certain: Counter[str]
    fates: Counter[str]
    kinds: Counter[str]
    unsettled: list[str]
    broken: list[str]


class Ledger:
    """Opened before a request is sent, closed once when its fate is known."""

    def __init__(self) -> None:
        self._asked: dict[str, Asked] = {}
        self.twice: list[str] = []

    def __len__(self) -> int:
        return len(self._asked)

    def open(self, kind: str, session: str | None) -> Asked:
        asked = Asked(str(len(self._asked) + 1), kind, session)
        self._asked[asked.number] = asked
        return asked

    def close(self, asked: Asked, fate: str, *, text: str | None = None, detail: str = "") -> None:
        """Raises ``ValueError`` for a word that is no fate; a second fate is noted, the first stays."""
        if fate not in FATES:
            raise ValueError(f"{fate!r} is none of {', '.join(sorted(FATES))}")
        if asked.fate is not None:
            self.twice.append(f"request {asked.number} ({asked.kind}): {asked.fate}, then {fate}")
            return
        asked.fate, asked.text, asked.detail = fate, text, detail

    def all(self) -> list[Asked]:
        return list(self._asked.values())

    def books(self) -> Books:
        every = self.all()
        fates = Counter(asked.fate for asked in every if asked.fate is not None)
        return Books(
            certain=Counter({outcome: fates[outcome] for outcome in OUTCOMES if fates[outcome]}),
            fates=fates,
            kinds=Counter(asked.kind for asked in every),
            unsettled=[f"request {a.number} ({a.kind})" for a in every if a.fate is None],
            broken=[f"request {a.number} ({a.kind}): {a.detail}" for a in every if a.fate == BROKEN],
        )
