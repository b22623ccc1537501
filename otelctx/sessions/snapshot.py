"""What a window was at one version: positions, and the pages that hold its tokens."""

from __future__ import annotations

from otelctx.sessions.arena import PAGE, pages_for

__all__ = ["logical_pages"]


def logical_pages(pinned: int, head: int, tail: int) -> list[int]:
    """Which logical pages hold the kept tokens ``[0, pinned)`` and ``[head, tail)``, in order."""
    first = pages_for(pinned)
    return [*range(first), *range(max(head // PAGE, first), pages_for(tail))]
