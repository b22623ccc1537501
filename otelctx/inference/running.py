"""A turn as the event loop sees it: the answer to iterate, its telemetry, its lease.

A turn is kept when its last chunk is handed to the reader, and taken back if the reader goes before. So a session
holds exactly what its client has seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from types import TracebackType

from otelctx.context.state import Window
from otelctx.errors import OtelctxError
from otelctx.inference.channel import Channel
from otelctx.inference.job import Admission, Ended
from otelctx.inference.report import TurnReport
from otelctx.inference.reuse import Miss
from otelctx.inference.turn import Chunk
from otelctx.sessions.store import Lease

__all__ = ["RunningTurn"]

_log = logging.getLogger(__name__)


class RunningTurn(AsyncGenerator[Chunk, None]):
    """One turn; also the iterator of its chunks."""

    def __init__(
        self,
        report: TurnReport,
        lease: Lease | None,
        *,
        version: Callable[[], int],
        settle: Callable[[RunningTurn, bool], None],
    ) -> None:
        """``settle(turn, keep)`` asks the engine's thread to keep the turn or to take it back. ``version`` numbers
        what is reported for turns without a session.
        """
        self._report = report
        self._version = version
        self._lease = lease
        self._settle = settle
        self._settling = False
        self._read = False  # the reader wants no more, or there is no more for it
        self._channel = Channel()
        loop = asyncio.get_running_loop()
        self._admission: asyncio.Future[Admission] = loop.create_future()
        self._settled: asyncio.Future[None] = loop.create_future()

    def when_settled(self, call: Callable[[], object]) -> None:
        """Have ``call`` run once row and session are free."""
        self._settled.add_done_callback(lambda _: call())

    async def placed(self) -> None:
        """Wait until the turn is admitted. Raises what it was refused with."""
        try:
            await asyncio.shield(self._admission)
        except asyncio.CancelledError:
            await self.aclose()
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

    def chunks(self) -> AsyncGenerator[Chunk, None]:
        return self

    async def aclose(self) -> None:
        self._read = True
        self._end(keep=False)
        await asyncio.shield(self._settled)

    # the iterator

    async def asend(self, value: None) -> Chunk:
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

    async def athrow(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Chunk:
        await self.aclose()
        raise kind if isinstance(kind, BaseException) else kind()

    async def interrupt(self, error: OtelctxError) -> None:
        """End the answer where it is: the reader gets ``error``, the turn is taken back."""
        if not self._settling:
            self.failed(error, 0)
            self._end(keep=False)
        await asyncio.shield(self._settled)

    def _end(self, *, keep: bool) -> None:
        if not self._settling:
            self._settling = True
            self._settle(self, keep)

    # Listener

    def admitted(self, admission: Admission) -> None:
        self._report.admitted(admission, self._version())
        self._admission.set_result(admission)

    def refused(self, error: OtelctxError) -> None:
        self._settling = True
        self._release()
        self._admission.set_exception(error)
        # A reader that has gone never looks at it.
        self._admission.exception()

    def started(self, at: float, row: int, reused: int, miss: Miss | None) -> None:
        self._progress()
        self._report.started(at, row, reused, miss)

    def first_token(self, at: float) -> None:
        self._report.first_token(at)

    def text(self, text: str) -> None:
        self._progress()
        self._report.text(text)
        self._channel.put(text)

    def ended(self, ended: Ended) -> None:
        self._channel.end(self._report.result(ended))

    def failed(self, error: OtelctxError, sampled: int) -> None:
        self._report.failed(error, sampled)
        self._channel.fail(error)

    def settled(self, sampled: int, error: OtelctxError | None) -> None:
        if error is not None:
            _log.warning("an answer was given that its session could not keep: %s", error)
        self._report.cancelled(sampled)
        self._release()

    def _progress(self) -> None:
        if self._lease is not None:
            self._lease.renew()

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
        if not self._settled.done():
            self._settled.set_result(None)
