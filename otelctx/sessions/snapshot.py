"""What a window was at one version: positions, and the pages that hold its tokens."""

from __future__ import annotations

from dataclasses import dataclass

from otelctx.sessions.arena import PAGE, Arena, Tokens, pages_for

__all__ = ["Counts", "Snapshot", "logical_pages"]


def logical_pages(pinned: int, head: int, tail: int) -> list[int]:
    """Which logical pages hold the kept tokens ``[0, pinned)`` and ``[head, tail)``, in order."""
    first = pages_for(pinned)
    return [*range(first), *range(max(head // PAGE, first), pages_for(tail))]


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of a window as its last commit left it: ``appended = kept + evicted``."""

    version: int
    kept: int
    evicted: int


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A window as it was at ``version``; it has a reference to each of its ``pages``, int32 of shape [n] in logical
    order. The window goes on in the same pages: behind ``tail`` they are not the snapshot's.
    """

    version: int
    head: int
    tail: int
    pinned: int
    marks: tuple[int, ...]
    pages: Tokens

    @property
    def counts(self) -> Counts:
        return Counts(self.version, self.pinned + self.tail - self.head, self.head - self.pinned)

    @property
    def logical(self) -> list[int]:
        """Which logical page each of ``pages`` is."""
        return logical_pages(self.pinned, self.head, self.tail)

    def release(self, arena: Arena) -> None:
        """The end of it, once."""
        for page in self.pages.tolist():
            arena.release(page)
