"""One turn on the engine's thread, and what that thread tells the event loop of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from otelctx.errors import OtelctxError
from otelctx.inference.detokenize import Stream
from otelctx.inference.guard import Prompt
from otelctx.inference.overflow import Fits, Truncate
from otelctx.inference.reuse import NOTHING, Hope, Miss
from otelctx.inference.sampling import RowState
from otelctx.inference.sliding import Slide
from otelctx.inference.stopping import StopMatcher
from otelctx.inference.turn import FinishReason, Limit, TurnRequest
from otelctx.sessions.record import SessionRecord
from otelctx.sessions.window import Tx

__all__ = ["Admission", "Ended", "Job", "Listener"]


@dataclass(frozen=True, slots=True)
class Admission:
    """A turn has its place in the window. ``evicted``: tokens that left the window for it, of ``before`` that it
    held; ``total_evicted`` and ``version`` are the window's."""

    verdict: Fits | Truncate
    before: int = 0
    evicted: int = 0
    total_evicted: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is complete. ``sampled`` counts all tokens that were drawn; ``used`` is the window with the answer;
    ``at`` is when the last token came, in seconds of the engine's clock; ``evicted`` tokens left the window while the
    answer grew, for which ``recomputed`` were fed once more."""

    reason: FinishReason
    limit: Limit | None
    cut: str | None
    sampled: int
    used: int
    at: float
    evicted: int = 0
    recomputed: int = 0


class Listener(Protocol):
    """Called on the event loop, in this order: admitted or refused; started, first_token, text …, ended; settled
    last, after failed too. Times are seconds of the engine's clock."""

    def admitted(self, admission: Admission) -> None: ...
    def refused(self, error: OtelctxError) -> None: ...
    def started(self, at: float, row: int, reused: int, miss: Miss | None) -> None: ...
    def first_token(self, at: float) -> None: ...
    def text(self, text: str) -> None: ...
    def ended(self, ended: Ended) -> None: ...
    def failed(self, error: OtelctxError, sampled: int) -> None: ...
    def settled(self, sampled: int, error: OtelctxError | None) -> None: ...


@dataclass(slots=True, eq=False)
class Job:
    """``deadline`` is in seconds of the engine's clock. The fields below ``listener`` belong to the engine's thread:
    ``ids`` is the prompt as admitted, ``feed`` what is prefilled, which is another once the context has slid; ``began``
    is when the turn got its row."""

    number: int
    request: TurnRequest
    prompt: Prompt
    record: SessionRecord | None
    deadline: float | None
    listener: Listener

    stream: Stream
    state: RowState
    stops: StopMatcher
    ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    feed: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    output: int = 0
    hope: Hope = NOTHING
    slide: Slide | None = None
    tx: Tx | None = None
    promised: int = 0
    row: int = -1  # none yet
    began: float = 0.0
    generated: list[int] = field(default_factory=list)
    sampled: int = 0
    shown: int = 0
    over: bool = False

    @property
    def limit(self) -> Limit:
        """Which limit a full answer has run into."""
        return "output" if self.output == self.request.max_tokens else "context"
