"""Stop strings in a text that arrives in pieces. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopMatcher"]


class StopMatcher:
    """Holds back what may yet become a stop string, and ends the text before the first one that is complete.

    However the text is cut into pieces, the outcome is the same: the stop string that ends first counts, of several
    that end together the longest.
    """

    __slots__ = ("_held", "_longest", "_stops", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        """``stops`` are not empty strings; there may be none of them."""
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Add ``text``; returns what can be shown by now. Once ``stopped`` there is nothing more."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        text = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)[1]]
        kept = len(text) - self._undecided(text)
        self._held = text[kept:]
        return text[:kept]

    def finish(self) -> str:
        """The text has ended: what was held back is shown after all."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Length of the longest end of ``text`` that a stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
