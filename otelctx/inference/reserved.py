"""How much of its memory a worker has promised to the turns in flight."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from otelctx.inference.job import Job
from otelctx.inference.kvrows import RowKV
from otelctx.inference.overflow import reserve_for
from otelctx.inference.prompt import Prompt
from otelctx.sessions.arena import Arena, pages_for
from otelctx.sessions.record import SessionRecord

__all__ = ["Reserved", "added_tokens"]


@dataclass(frozen=True, slots=True, eq=False)
class Reserved:
    """``jobs``: those in flight, a live view; ``window`` in tokens. Readable from any thread: the numbers may be of
    different moments, never wrong ones."""

    jobs: Collection[Job]
    kv: RowKV
    arena: Arena
    window: int

    def share(self) -> float:
        """Reserved over budget: of the KV or of the arena, whichever is scarcer."""
        jobs = list(self.jobs)
        return max(self._reserved(jobs) / (self.kv.rows * self.window), _pages(jobs) / self.arena.pages)

    def kv_bytes(self) -> dict[str, int]:
        """``predicted``: what the turns that run may fill at most; ``reserved``: what counts as pressure; ``actual``:
        what is filled, for turns to come too; ``budget``: all there is."""
        jobs = list(self.jobs)
        tokens = {
            "predicted": sum(min(self.window, len(job.ids) + job.output) for job in jobs if _runs(job)),
            "reserved": self._reserved(jobs),
            "actual": sum(self.kv.lengths),
            "budget": self.kv.rows * self.window,
        }
        return {state: count * self.kv.bytes_per_token for state, count in tokens.items()}

    def _reserved(self, jobs: Collection[Job]) -> int:
        """The prompts, with the answers so far, or with what is kept free for them if that is more.

        Not all that a turn without ``max_tokens`` may fill: one in each row would look like memory that is used up.
        """
        return sum(
            min(
                self.window,
                len(job.ids) + max(len(job.generated), reserve_for(job.request.max_tokens, self.window)),
            )
            for job in jobs
            if _runs(job)
        )


def added_tokens(prompt: Prompt, record: SessionRecord | None) -> int:
    """Tokens that a turn adds to its session's window; all of its prompt, if it has no session."""
    again = record.window.kept if record is not None and prompt.messages is not None else 0
    return max(0, len(prompt.ids) - again)


def _runs(job: Job) -> bool:
    return job.row >= 0 and not job.over


def _pages(jobs: Collection[Job]) -> int:
    """Pages that nobody can be made to give back: those of sessions that run a turn, and what was promised to it. Idle
    sessions make room when it is wanted."""
    return sum(pages_for(job.record.window.kept) + job.promised for job in jobs if job.record is not None)
