"""How much of its memory a worker has promised to the turns in flight."""

from __future__ import annotations

from collections.abc import Iterable

from otelctx.inference.job import Job
from otelctx.inference.overflow import reserve_for
from otelctx.sessions.arena import pages_for

__all__ = ["memory_share", "reserved_pages", "reserved_tokens"]


def reserved_tokens(jobs: Iterable[Job], window: int) -> int:
    """KV columns, in tokens, of turns that have a row: the prompt, and the answer or what is reserved for it if that
    is more.

    Not all that a turn without ``max_tokens`` may use: one in each row would look like memory that is used up.
    """
    total = 0
    for job in jobs:
        if job.row >= 0 and not job.over:
            answer = max(len(job.generated), reserve_for(job.request.max_tokens, window))
            total += min(window, len(job.ids) + answer)
    return total


def reserved_pages(jobs: Iterable[Job]) -> int:
    """Pages of the arena that nobody can be made to give back: those of sessions that run a turn, and what was promised
    to it. Sessions that are idle make room when it is wanted."""
    return sum(pages_for(job.record.window.kept) + job.promised for job in jobs if job.record is not None)


def memory_share(jobs: Iterable[Job], *, rows: int, window: int, pages: int) -> float:
    """Reserved over budget: of the KV or of the arena, whichever is scarcer. ``rows`` of ``window`` tokens, ``pages``
    in the arena."""
    known = list(jobs)
    return max(reserved_tokens(known, window) / (rows * window), reserved_pages(known) / pages)
