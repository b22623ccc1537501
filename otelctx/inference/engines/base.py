"""What every engine offers. The serving layer depends on this, on no engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from otelctx.context.state import Window
from otelctx.inference.desk import SessionDesk
from otelctx.inference.params import Params
from otelctx.inference.turn import Chunk, Message, TurnRequest

__all__ = ["Admitted", "Engine", "EngineStats"]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What an engine holds at this moment. ``queued`` turns wait for a row, ``active`` ones run in one."""

    rows_busy: int
    rows_total: int
    leases: int
    pages_used: int
    queued: int
    active: int
    sessions: int


class Admitted(Protocol):
    """A turn that fits: past the guard, its session leased, its place in the window taken."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens in context when the answer begins."""

    @property
    def dropped_tokens(self) -> int:
        """Tokens that were removed to make room."""

    @property
    def window(self) -> Window:
        """The window as it is with the prompt in it."""

    def chunks(self) -> AsyncGenerator[Chunk, None]:
        """The answer. To be iterated once; closing it early takes the turn back."""

    async def aclose(self) -> None:
        """Take the turn back unless its last chunk was delivered; returns when row and session are free. Idempotent."""


class Engine(Protocol):
    """One model."""

    @property
    def name(self) -> str:
        """What the model is called in requests and telemetry."""

    @property
    def window(self) -> int:
        """The window in effect, in tokens."""

    @property
    def model_max(self) -> int:
        """The positions that the model was made for."""

    @property
    def ready(self) -> bool:
        """Whether it takes turns."""

    @property
    def broken(self) -> str | None:
        """Why it will take none again, so that another process has to. ``None`` while that is not so: an engine that
        has not been started yet, or was closed, is not broken."""

    async def start(self) -> None:
        """Begin to serve, on the running event loop. Idempotent; the first turn does it too."""

    async def close(self) -> None:
        """Take back what is running, and stop. Idempotent."""

    async def admit(self, request: TurnRequest) -> Admitted:
        """Check a turn and queue it.

        Raises what a server answers before a response starts: ``InvalidRequest`` and ``TokenLimitExceeded`` 400,
        ``SessionNotFound`` 404, ``SessionBusy`` 409, ``StreamRequired`` 422, ``Overloaded``, ``BudgetExhausted`` and
        ``ArenaExhausted`` 503, ``EngineFailed`` 500.

        ``request.deadline`` bounds all of a turn, from its arrival on. A turn that still waits for its session then
        ends with ``SessionDeadline`` 409. Once it has its place, waiting for a row, in its prompt or in its answer, the
        answer ends where it is, with the text so far, which may be none: ``length``, with the limit ``deadline``; such
        a turn is kept. The outcome is ``deadline`` for both.
        """

    def chat(
        self,
        messages: Iterable[Message | Mapping[str, Any]],
        *,
        session: str | None = None,
        owner: str = "anonymous",
        max_tokens: int | None = None,
        params: Params | None = None,
        stop: Iterable[str] = (),
        priority: int = 0,
        deadline: float | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """:meth:`admit` and the chunks in one; errors of admission are raised by the first step."""

    def stats(self) -> EngineStats: ...

    @property
    def sessions(self) -> SessionDesk:
        """Its sessions: states, versions, rollback, labels."""

    async def session_state(self, session: str, owner: str = "anonymous") -> dict[str, Any]:
        """What is known of a session, as JSON. Raises ``SessionNotFound``."""

    async def delete_session(self, session: str, owner: str = "anonymous") -> None:
        """Forget a session. Raises ``SessionNotFound`` and ``SessionBusy``."""
