"""What a handler gets in place of gRPC's context: the same, which also carries the ack and keeps what has been set.

The handler does not see frames: they are for one hop, and an application that passes its metadata on would send them
where they do not belong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import grpc
from grpc import StatusCode

from otelctx.grpc.handling import ServerCall
from otelctx.grpc.metadata import MAX_BYTES, foreign, weigh
from otelctx.grpc.status import ABORTED_BY, name_of
from otelctx.semconv import ACK_METADATA

__all__ = ["AioServicer", "Servicer", "SyncServicer"]

REFUSAL: Final = "the context frame refers to a state that is not held here; repeat the call with a full one"
_ROOM: Final = MAX_BYTES - 512 - 64  # what an ack takes at most


class Servicer:
    """What both have in common; here with the methods of a sync one.

    ``aborted``: the call has been ended with a status on purpose, by an exception of gRPC's own.
    """

    def __init__(self, inner: Any, call: ServerCall) -> None:
        self._inner = inner
        self._call = call
        self._trailing: list[Any] = []
        self._code: Any = None
        self._initial_sent = False
        self.aborted = False

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def invocation_metadata(self) -> Any:
        return tuple(foreign(self._inner.invocation_metadata()))

    def trailing_metadata(self) -> Any:
        return tuple(self._trailing)

    def set_trailing_metadata(self, trailing_metadata: Iterable[Any]) -> None:
        self._trailing = foreign(trailing_metadata)
        self._inner.set_trailing_metadata(tuple(self._trailing))

    def code(self) -> Any:
        return self._code

    def set_code(self, code: Any) -> None:
        self._code = code
        self._inner.set_code(code)

    def send_initial_metadata(self, initial_metadata: Iterable[Any]) -> Any:
        self._initial_sent = True
        self._inner.send_initial_metadata(tuple(foreign(initial_metadata)))

    def abort(self, code: Any, details: str) -> Any:
        self._aborts(code)
        return self._inner.abort(code, details)

    def abort_with_status(self, status: Any) -> Any:
        self.set_trailing_metadata(status.trailing_metadata or ())
        return self.abort(status.code, status.details)

    # for the interceptor

    @property
    def own(self) -> ServerCall:
        return self._call

    def fails(self) -> None:
        """The handler has raised something: gRPC makes it the code that was set, or UNKNOWN."""
        if self._code is None:
            self._code = StatusCode.UNKNOWN
        self._trail()

    def _aborts(self, code: Any) -> None:
        self.aborted, self._code = True, code
        self._trail()

    def _trail(self) -> bytes | None:
        """Put the ack behind what the application has set, if it has not been put there yet and there is room."""
        if weigh(self._trailing) > _ROOM:
            return None
        ack = self._call.ack()
        if ack is not None:
            self._inner.set_trailing_metadata((*self._trailing, (ACK_METADATA, ack)))
        return ack

    def seal(self, *, unary: bool) -> None:
        """The handler is done: send the ack, for a unary answer ahead of it as well."""
        ack = self._trail()
        if ack is not None and unary and not self._initial_sent:
            try:
                self._inner.send_initial_metadata(((ACK_METADATA, ack),))
            except Exception:  # nobody is there any more, or somebody further in was quicker: it comes with the end
                return

    def refuse(self) -> None:
        """Raises gRPC's own exception. The ack goes ahead as well: without it the sender could not know this from a
        refusal of the application."""
        self.seal(unary=True)
        self.abort(ABORTED_BY, REFUSAL)

    def status(self, *, cancelled: bool = False) -> str:
        """The name of the status that the call ends with. A client that has gone is told from one out of time."""
        if cancelled or (self._code is None and self.gone()):
            left = self._inner.time_remaining()
            return "DEADLINE_EXCEEDED" if left is not None and left <= 0 else "CANCELLED"
        return name_of(self._code)

    def gone(self) -> bool:
        """Whether the client has, as far as this context can tell."""
        active = getattr(self._inner, "is_active", None)
        return active is not None and not active()


class SyncServicer(Servicer):
    """A context with blocking methods: of a sync server, or of a sync handler in an aio server."""


class AioServicer(Servicer):
    """A context of an aio server, whose methods that send are coroutines."""

    async def send_initial_metadata(self, initial_metadata: Iterable[Any]) -> None:
        self._initial_sent = True
        await self._inner.send_initial_metadata(tuple(foreign(initial_metadata)))

    async def abort(self, code: Any, details: str = "", trailing_metadata: Iterable[Any] = ()) -> Any:
        if trailing_metadata:
            self._trailing = foreign(trailing_metadata)
            self._inner.set_trailing_metadata(tuple(self._trailing))
        self._aborts(code)
        return await self._inner.abort(code, details)

    async def abort_with_status(self, status: Any) -> Any:
        return await self.abort(status.code, status.details, status.trailing_metadata or ())

    async def aseal(self, *, unary: bool) -> None:
        """As :meth:`seal`."""
        ack = self._trail()
        if ack is not None and unary and not self._initial_sent:
            try:
                await self._inner.send_initial_metadata(((ACK_METADATA, ack),))
            except Exception:  # as above
                return

    async def arefuse(self) -> None:
        """As :meth:`refuse`."""
        await self.aseal(unary=True)
        await self.abort(ABORTED_BY, REFUSAL)

    def gone(self) -> bool:
        return bool(self._inner.cancelled())


grpc.ServicerContext.register(SyncServicer)
grpc.aio.ServicerContext.register(AioServicer)
