"""Two sets of books: what the processes counted, and what was exported or went over the wire. They must agree."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Entry", "Ledger"]


@dataclass(frozen=True, slots=True)
class Entry:
    """``counted`` is what a process said of itself, ``seen`` what a span or the tap says of it."""

    step: str
    what: str
    counted: Any
    seen: Any

    @property
    def agrees(self) -> bool:
        return type(self.counted) is type(self.seen) and self.counted == self.seen


class Ledger:
    """Collects both figures of everything that the demo prints, and the steps that did not do what they should."""

    def __init__(self, tamper: str | None = None) -> None:
        """``tamper`` is for the self-test: the first figure whose name contains it is counted one too many."""
        self.entries: list[Entry] = []
        self.failures: list[str] = []
        self._tamper = tamper

    def compare(self, step: str, what: str, counted: Any, seen: Any) -> None:
        """Enter one figure twice."""
        if self._tamper is not None and self._tamper in what and isinstance(counted, int):
            counted += 1
            self._tamper = None
        self.entries.append(Entry(step, what, counted, seen))

    def require(self, step: str, what: str, holds: bool) -> None:
        """A step must have done what it should."""
        if not holds:
            self.failures.append(f"{step}: {what}")

    def verdict(self) -> list[str]:
        """What is wrong, one line each; empty if nothing is."""
        wrong = [f"{e.step}: {e.what}: counted {e.counted!r}, seen {e.seen!r}" for e in self.entries if not e.agrees]
        if self._tamper is not None:
            wrong.append(f"nothing was counted that is called {self._tamper!r}")
        return self.failures + wrong

    def document(self) -> dict[str, Any]:
        """Every figure as JSON could hold it, and what is wrong."""
        figures = [asdict(entry) | {"agrees": entry.agrees} for entry in self.entries]
        return {"figures": figures, "wrong": self.verdict()}
