"""From the engine to one reader: text, then the end or an error.

Unread text is joined, so there is never more than one thing to read; a slow reader gets larger pieces and holds up
nobody. An answer that makes room for itself has no end, so how much waits is counted, for the writer to give up on a
reader. Everything here runs on the reader's event loop.
"""

from __future__ import annotations

import asyncio

from otelctx.inference.turn import Chunk, TurnResult

__all__ = ["Channel"]


class Channel:
    """One writer, one reader."""

    __slots__ = ("_error", "_result", "_text", "_waiter", "unread")

    def __init__(self) -> None:
        self.unread = 0
        """Characters that wait to be read."""
        self._text: list[str] = []
        self._result: TurnResult | None = None
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, text: str) -> None:
        """More text; an empty one wakes nobody."""
        if text:
            self._text.append(text)
            self.unread += len(text)
            self._wake()

    def end(self, result: TurnResult) -> None:
        """There is no more text. After an error there is no result."""
        if self._error is None:
            self._result = result
        self._wake()

    def fail(self, error: BaseException) -> None:
        """There is no more text, and the reader is told why. The first reason counts; a result that is unread is
        taken back."""
        if self._error is None:
            self._error = error
            self._result = None
        self._wake()

    async def get(self) -> Chunk:
        """All that is unread. The chunk with the result is the last; an error is raised once the text is read."""
        while not self._text and self._result is None and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        text = "".join(self._text)
        self._text.clear()
        self.unread = 0
        if self._error is not None and not text:
            raise self._error
        result = self._result
        return Chunk(text) if result is None else Chunk(text, result.finish_reason, result)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
