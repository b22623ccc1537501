"""A turn as the event loop sees it: the answer to iterate, its telemetry, its lease.

A turn is kept when its last chunk is handed to the reader, and taken back if the reader goes before. So a session
holds exactly what its client has seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from otelctx.context.state import Window
from otelctx.errors import OtelctxError, Overloaded, SessionDeadline
from otelctx.inference.channel import Channel
from otelctx.inference.job import Admission, Ended
from otelctx.inference.report import TurnReport
from otelctx.inference.reuse import Miss
from otelctx.inference.turn import Chunk
from otelctx.sessions.store import Lease

__all__ = ["RunningTurn"]

_log = logging.getLogger(__name__)

_UNREAD: Final = 4 * 2**20  # characters: more than any window holds
_OVERDUE: Final = "the turn made no progress, or was not read, for so long that it lost its session; nothing is kept"


class RunningTurn:
    """One turn. Its reader has it by a :class:`~otelctx.inference.handle.TurnHandle`."""

    def __init__(
        self,
        report: TurnReport,
        lease: Lease | None,
        *,
        version: Callable[[], int],
        settle: Callable[[RunningTurn, bool], None],
    ) -> None:
        """``settle(turn, keep)`` asks the engine's thread to keep the turn or to take it back. ``version`` numbers
        what is reported for turns without a session. The turn releases ``lease``, and nobody else does.
        """
        self._report = report
        self._version = version
        self._lease = lease
        self._settle = settle
        self._settling = False
        self._read = False  # the reader wants no more, or there is no more for it
        self._error: OtelctxError | None = None  # what the answer was cut with
        self._channel = Channel()
        self._loop = loop = asyncio.get_running_loop()
        self._admission: asyncio.Future[Admission] = loop.create_future()
        self._settled: asyncio.Future[None] = loop.create_future()
        if lease is not None:
            lease.on_overdue = partial(self.cut, SessionDeadline(_OVERDUE, param="session"))

    def when_settled(self, call: Callable[[], object]) -> None:
        """Have ``call`` run once row and session are free."""
        self._settled.add_done_callback(lambda _: call())

    async def placed(self) -> None:
        """Wait until the turn is admitted. Raises what it was refused with, once row and session are free."""
        try:
            await asyncio.shield(self._admission)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        except OtelctxError:
            await asyncio.shield(self._settled)
            raise

    # Admitted

    @property
    def prompt_tokens(self) -> int:
        return self._report.usage().prompt_tokens

    @property
    def dropped_tokens(self) -> int:
        return self._report.usage().dropped_tokens

    @property
    def window(self) -> Window:
        return self._report.window

    async def aclose(self) -> None:
        self._leave()
        await asyncio.shield(self._settled)

    def abandon(self) -> None:
        """Nobody can read the turn any more: take it back, unless its reader has had all of it. From any thread."""
        if not self._settling:
            with suppress(RuntimeError):  # the loop is closed, and with it all that the engine does
                self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._read = True
        self._end(keep=False)
        # Another task may be waiting for the next chunk.
        self._channel.fail(StopAsyncIteration())

    async def next(self) -> Chunk:
        """The next chunk. Raises ``StopAsyncIteration`` after the last."""
        if self._read:
            await asyncio.shield(self._settled)
            raise StopAsyncIteration
        try:
            chunk = await self._channel.get()
        except OtelctxError:
            await self.aclose()
            raise
        if chunk.result is not None:
            self._read = True
            self._report.answered(chunk.result)
            self._end(keep=True)
        return chunk

    def cut(self, error: OtelctxError) -> None:
        """End the answer where it is: the reader gets ``error``, the turn is taken back. Nothing happens to a turn
        whose reader has its last chunk or has gone."""
        if self._settling:
            return
        self._error = error
        self._channel.fail(error)
        self._end(keep=False)
        if not self._admission.done():
            self._refuse(error)

    async def interrupt(self, error: OtelctxError) -> None:
        """:meth:`cut`, and wait until row and session are free."""
        self.cut(error)
        await asyncio.shield(self._settled)

    def _end(self, *, keep: bool) -> None:
        if not self._settling:
            self._settling = True
            self._settle(self, keep)

    # Listener

    def admitted(self, admission: Admission) -> None:
        if self._settling:  # and nobody will see what it would have looked like
            return
        self._report.admitted(admission, self._version())
        self._admission.set_result(admission)

    def refused(self, error: OtelctxError) -> None:
        self._settling = True
        self._release()
        if not self._admission.done():
            self._refuse(error)

    def started(self, at: float, row: int, reused: int, miss: Miss | None) -> None:
        if not self._settling:
            self._progress()
            self._report.started(at, row, reused, miss)

    def first_token(self, at: float) -> None:
        if not self._settling:
            self._report.first_token(at)

    def text(self, text: str) -> None:
        if not self._settling:
            self._progress()
            self._report.text(text)
            self._channel.put(text)
            if self._channel.unread > _UNREAD:
                self.cut(Overloaded("the answer was not read as fast as it came", code="reader_too_slow"))

    def ended(self, ended: Ended) -> None:
        if not self._settling:
            self._channel.end(self._report.result(ended))

    def failed(self, error: OtelctxError, sampled: int) -> None:
        if not self._settling:
            self._report.failed(error, sampled)
            self._channel.fail(error)

    def settled(self, sampled: int, error: OtelctxError | None) -> None:
        if error is not None:
            _log.warning("an answer was given that its session could not keep: %s", error)
        if self._error is not None:
            self._report.failed(self._error, sampled)
        self._report.cancelled(sampled)  # unless there was an outcome before
        self._release()

    def _refuse(self, error: OtelctxError) -> None:
        self._admission.set_exception(error)
        # A reader that has gone never looks at it.
        self._admission.exception()

    def _progress(self) -> None:
        if self._lease is not None:
            self._lease.renew()

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
        if not self._settled.done():
            self._settled.set_result(None)
