"""``interceptors()``: the same list for aio channels and for servers of both kinds."""

from __future__ import annotations

from inspect import isawaitable
from typing import Any

from grpc import aio
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from otelctx.exchange.node import Node, default_node
from otelctx.grpc.aio_client import AioClient
from otelctx.grpc.party import Party
from otelctx.grpc.server import wrap
from otelctx.grpc.target import parse

__all__ = ["interceptors"]


def interceptors(
    target: str | None = None,
    *,
    balanced: bool = False,
    node: Node | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> list[Any]:
    """For the ``interceptors`` of ``grpc.aio.insecure_channel``, ``grpc.aio.server`` and ``grpc.server``, and of their
    siblings; put them first. ``target`` and ``balanced`` are for channels: see
    :func:`otelctx.grpc.client.instrument`, which is for sync ones.

    Raises :class:`~otelctx.errors.ConfigError` for settings in the environment that mean nothing.
    """
    if node is None:
        default_node()  # reported here, and not by the first call
    party = Party(node, tracer_provider, meter_provider)
    client = AioClient(party, None if target is None else parse(target), balanced)
    return [_UnaryUnary(party, client), _UnaryStream(client), _StreamUnary(client), _StreamStream(client)]


class _Passing(aio.ServerInterceptor):
    """A channel wants one object for each kind of call, and a server one for all: the others do nothing there."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        return continuation(handler_call_details)


class _UnaryUnary(aio.UnaryUnaryClientInterceptor, aio.ServerInterceptor):
    def __init__(self, party: Party, client: AioClient) -> None:
        self._party, self._client = party, client

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._client.unary(continuation, client_call_details, request)

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Of a sync server and of an aio one: it shows in what ``continuation`` returns."""
        method = handler_call_details.method
        found = continuation(handler_call_details)
        return self._later(found, method) if isawaitable(found) else wrap(found, self._party, method)

    async def _later(self, found: Any, method: str) -> Any:
        return wrap(await found, self._party, method)


class _UnaryStream(_Passing, aio.UnaryStreamClientInterceptor):
    def __init__(self, client: AioClient) -> None:
        self._client = client

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._client.stream(continuation, client_call_details, request)


class _StreamUnary(_Passing, aio.StreamUnaryClientInterceptor):
    def __init__(self, client: AioClient) -> None:
        self._client = client

    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await self._client.stream_unary(continuation, client_call_details, request_iterator)


class _StreamStream(_Passing, aio.StreamStreamClientInterceptor):
    def __init__(self, client: AioClient) -> None:
        self._client = client

    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await self._client.stream(continuation, client_call_details, request_iterator)
