"""A turn in its reader's hands.

The engine keeps a turn until that is settled, and nobody but the reader keeps its handle: one that is dropped before
its last chunk was taken is collected, and the turn with it taken back, as if it had been closed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType

from otelctx.context.state import Window
from otelctx.inference.running import RunningTurn
from otelctx.inference.turn import Chunk

__all__ = ["TurnHandle"]


class TurnHandle(AsyncGenerator[Chunk, None]):
    """An :class:`~otelctx.inference.engines.base.Admitted` turn; also the iterator of its chunks."""

    def __init__(self, turn: RunningTurn) -> None:
        self._turn = turn

    def __del__(self) -> None:
        # The collector may run in any thread, the engine's own among them.
        self._turn.abandon()

    @property
    def prompt_tokens(self) -> int:
        return self._turn.prompt_tokens

    @property
    def dropped_tokens(self) -> int:
        return self._turn.dropped_tokens

    @property
    def window(self) -> Window:
        return self._turn.window

    def chunks(self) -> AsyncGenerator[Chunk, None]:
        return self

    # Coroutine functions each, so that who awaits one of them holds the handle.

    async def asend(self, value: None) -> Chunk:
        return await self._turn.next()

    async def athrow(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Chunk:
        await self._turn.aclose()
        raise kind if isinstance(kind, BaseException) else kind()

    async def aclose(self) -> None:
        await self._turn.aclose()
