"""Handlers of gRPC servers, wrapped: the scope is entered where the handler runs, and for each message it makes."""

from __future__ import annotations

import inspect
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from typing import Any, Final

import grpc

from otelctx.grpc.handling import ServerCall
from otelctx.grpc.party import Party
from otelctx.grpc.servicer import AioServicer, Servicer, SyncServicer

__all__ = ["wrap"]

Behaviour = Callable[[Any, Any], Any]

_KINDS: Final = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}
_GONE: Final = (GeneratorExit, CancelledError)


def wrap(handler: Any, party: Party, method: str) -> Any:
    """``handler`` with the call around it; one that is wrapped already, or none, as it is."""
    if handler is None:
        return None
    attribute, make = _KINDS[handler.request_streaming, handler.response_streaming]
    behaviour = getattr(handler, attribute)
    if getattr(behaviour, "otelctx_handler", False):
        return handler
    # gRPC decides by the same questions how it calls a handler.
    if inspect.isasyncgenfunction(behaviour):
        wrapped: Any = _async_stream(behaviour, party, method)
    elif inspect.iscoroutinefunction(behaviour):
        wrapped = _coroutine(behaviour, party, method, unary=not handler.response_streaming)
    elif handler.response_streaming:
        wrapped = _stream(behaviour, party, method)
    else:
        wrapped = _unary(behaviour, party, method)
    wrapped.otelctx_handler = True
    return make(wrapped, handler.request_deserializer, handler.response_serializer)


def _open(party: Party, method: str, context: Any) -> Servicer:
    call = ServerCall(party, method, context.invocation_metadata(), context.peer())
    call.limit(context.time_remaining())
    call.begin()
    return SyncServicer(context, call)


async def _aopen(party: Party, method: str, context: Any) -> AioServicer:
    waits = party.here.shared is not None
    call = ServerCall(party, method, context.invocation_metadata(), context.peer(), may_wait=waits)
    if waits:
        await call.settle()
    call.limit(context.time_remaining())
    call.begin()
    return AioServicer(context, call)


def _failed(servicer: Servicer, error: BaseException) -> None:
    """The handler has raised ``error``: on gRPC's behalf, because nobody waits any more, or by mistake."""
    call = servicer.own
    if isinstance(error, _GONE) or (isinstance(error, grpc.RpcError) and servicer.gone()):
        # Of the second kind are the requests of a stream, once the client has gone.
        call.end(servicer.status(cancelled=True))
    elif servicer.aborted:
        call.end(servicer.status())
    else:
        servicer.fails()
        call.end(servicer.status(), error)


def _unary(behaviour: Behaviour, party: Party, method: str) -> Behaviour:
    def handle(request: Any, context: Any) -> Any:
        servicer = _open(party, method, context)
        call = servicer.own
        try:
            if call.refused:
                servicer.refuse()
            with call.entered():
                answer = behaviour(request, servicer)
            servicer.seal(unary=True)
        except BaseException as error:
            _failed(servicer, error)
            raise
        call.end(servicer.status())
        return answer

    return handle


def _stream(behaviour: Behaviour, party: Party, method: str) -> Behaviour:
    def handle(request: Any, context: Any) -> Iterator[Any]:
        servicer = _open(party, method, context)
        try:
            if servicer.own.refused:
                servicer.refuse()
            yield from _each(behaviour, request, servicer)
            servicer.seal(unary=False)
        except BaseException as error:
            _failed(servicer, error)
            raise
        servicer.own.end(servicer.status())

    return handle


def _each(behaviour: Behaviour, request: Any, servicer: Servicer) -> Iterator[Any]:
    """The handler's messages. The scope is not left entered where they are handed on: that code is gRPC's."""
    entered = servicer.own.entered
    with entered():
        answers = iter(behaviour(request, servicer))
    try:
        while True:
            with entered():
                try:
                    answer = next(answers)
                except StopIteration:
                    return
            yield answer
    finally:
        if hasattr(answers, "close"):
            with entered(), closing(answers):
                pass


def _coroutine(behaviour: Behaviour, party: Party, method: str, *, unary: bool) -> Behaviour:
    """One answer; or a stream whose messages the handler writes itself."""

    async def handle(request: Any, context: Any) -> Any:
        servicer = await _aopen(party, method, context)
        call = servicer.own
        try:
            if call.refused:
                await servicer.arefuse()
            with call.entered():
                answer = await behaviour(request, servicer)
            await servicer.aseal(unary=unary)
        except BaseException as error:
            _failed(servicer, error)
            raise
        call.end(servicer.status())
        return answer

    return handle


def _async_stream(behaviour: Behaviour, party: Party, method: str) -> Behaviour:
    async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
        servicer = await _aopen(party, method, context)
        try:
            if servicer.own.refused:
                await servicer.arefuse()
            async with aclosing(_each_async(behaviour, request, servicer)) as answers:
                async for answer in answers:
                    yield answer
            await servicer.aseal(unary=False)
        except BaseException as error:
            _failed(servicer, error)
            raise
        servicer.own.end(servicer.status())

    return handle


async def _each_async(behaviour: Behaviour, request: Any, servicer: AioServicer) -> Any:
    """As :func:`_each`."""
    entered = servicer.own.entered
    with entered():
        answers = behaviour(request, servicer)
    try:
        while True:
            with entered():
                try:
                    answer = await anext(answers)
                except StopAsyncIteration:
                    return
            yield answer
    finally:
        with entered():
            await answers.aclose()
