"""Channels of ``grpc.aio``, which are given their interceptors when they are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import Any

from grpc import aio
from opentelemetry import context as otel_context

from otelctx.grpc.call import ClientCall, size_of, start, suppressed
from otelctx.grpc.client import target_of
from otelctx.grpc.party import Party
from otelctx.grpc.status import by_this_side, name_of
from otelctx.grpc.target import Target

__all__ = ["AioClient"]


class AioClient:
    """The four kinds of calls, for interceptors to use. ``target``: instead of the channel's own."""

    def __init__(self, party: Party, target: Target | None, balanced: bool) -> None:
        self._party, self._target, self._balanced = party, target, balanced

    def _start(self, continuation: Any, details: aio.ClientCallDetails, body: int | None) -> ClientCall:
        target = self._target
        if target is None:
            # An interceptor is not told of its channel, but the continuation is a partial of the call, which knows it.
            target = target_of(getattr(getattr(continuation, "func", None), "__self__", None))
        return start(self._party, target, details.method, None if self._balanced else body)

    async def unary(self, continuation: Any, details: aio.ClientCallDetails, request: Any) -> Any:
        if suppressed():
            return await continuation(details, request)
        call = self._start(continuation, details, size_of(request))
        inner = await _send(call, continuation, details, request)
        if await _over(call, inner):
            call = call.again()
            inner = await _send(call, continuation, details, request)
            await _over(call, inner)
        return inner

    async def stream_unary(self, continuation: Any, details: aio.ClientCallDetails, requests: Any) -> Any:
        if suppressed():
            return await continuation(details, requests)
        call = self._start(continuation, details, None)
        inner = await _send(call, continuation, details, requests)
        _watch(call, inner)
        return _StreamUnary(call, inner)

    async def stream(self, continuation: Any, details: aio.ClientCallDetails, requests: Any) -> Any:
        if suppressed():
            return await continuation(details, requests)
        call = self._start(continuation, details, None)
        inner = await _send(call, continuation, details, requests)
        _watch(call, inner)
        return _answers(call, inner)


async def _send(call: ClientCall, continuation: Any, details: aio.ClientCallDetails, request: Any) -> Any:
    metadata = aio.Metadata(*call.metadata(details.metadata))
    outgoing = aio.ClientCallDetails(
        details.method, call.timeout(details.timeout), metadata, details.credentials, details.wait_for_ready
    )
    token = otel_context.attach(call.sending_context())
    try:
        return await continuation(outgoing, request)
    except BaseException as error:
        call.failed(error)
        raise
    finally:
        otel_context.detach(token)


async def _over(call: ClientCall, inner: Any) -> bool:
    """Wait for the end of a call with one answer. The answer, or its error, is the caller's to read."""
    try:
        await inner
    except asyncio.CancelledError:
        if not inner.done():
            inner.cancel()
        call.answered("CANCELLED", None, (), cancelled=True)
        raise
    except aio.AioRpcError:
        pass
    except BaseException as error:
        call.failed(error)
        raise
    return await _report(call, inner, initial=True)


async def _report(call: ClientCall, inner: Any, *, initial: bool = False) -> bool:
    """``inner`` is over: all that it is asked here is known. The initial metadata only matter to a unary answer."""
    code, details = name_of(await inner.code()), await inner.details()
    trailing, first = await inner.trailing_metadata(), await inner.initial_metadata() if initial else None
    cancelled = code == "CANCELLED" and by_this_side(details)
    return call.answered(code, details, trailing, first, cancelled=cancelled)


def _watch(call: ClientCall, inner: Any) -> None:
    """See the end of a stream also if nobody reads to it."""
    loop = asyncio.get_running_loop()
    kept: set[asyncio.Task[bool]] = set()

    def over(_: Any) -> None:
        task = loop.create_task(_report(call, inner))
        kept.add(task)
        task.add_done_callback(kept.discard)

    inner.add_done_callback(over)


async def _answers(call: ClientCall, inner: Any) -> AsyncIterator[Any]:
    try:
        async for answer in inner:
            yield answer
    except aio.AioRpcError:
        await _report(call, inner)
        raise
    await _report(call, inner)


class _StreamUnary:
    """A call with a stream of requests, in all but its answer the one inside: the application may still write to it."""

    def __init__(self, call: ClientCall, inner: Any) -> None:
        self._call, self._inner = call, inner

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        try:
            return await self._inner
        finally:
            if self._inner.done():
                await _report(self._call, self._inner)
