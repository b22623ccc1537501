"""How long, how much and with which seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["ID_HEADER", "Model", "Options", "WorkerOptions"]

ID_HEADER: Final = "x-soak-id"
"""With each request goes the number that it has in the client's ledger."""

Model = Literal["tiny", "smollm2"]


@dataclass(frozen=True, slots=True)
class Options:
    """``seconds`` of load; ``sessions`` conversations and ``alone`` askers without one, all at once; ``growth``: MiB a
    minute that the worker may grow by; ``replay``: seconds for judging conversations that were deleted meanwhile.
    """

    model: Model = "tiny"
    seconds: float = 180.0
    seed: int = 1
    sessions: int = 50
    alone: int = 8
    window: int = 512
    rows: int = 8
    growth: float = 1.0
    replay: float = 10.0

    @property
    def warm_up(self) -> float:
        """Seconds whose samples of memory do not count: rows, pages and queues have been used once by then."""
        return min(300.0, self.seconds / 3)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """``model``: as ``otelctx serve`` takes it; ``rarer``: how many times longer than usual it is from one
    fault to the next; ``record`` and ``final`` are files that the worker writes."""

    model: str
    window: int
    rows: int
    seed: int
    rarer: float
    threads: int
    record: str
    final: str
