"""Sync channels: ``otelctx.instrument(channel)``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar, cast

import grpc
from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from otelctx.errors import ConfigError
from otelctx.exchange.node import Node, default_node
from otelctx.grpc.call import ClientCall, size_of, start, suppressed
from otelctx.grpc.future import UnaryFuture, report, send
from otelctx.grpc.party import Party
from otelctx.grpc.target import UNKNOWN, Target, parse

__all__ = ["instrument"]

T = TypeVar("T")

_DEPTH: Final = 16  # channels around channels


def instrument(
    channel: T,
    *,
    target: str | None = None,
    balanced: bool = False,
    node: Node | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> T:
    """A channel in front of the sync ``channel``, whose calls are traced and carry context. A second time changes
    nothing.

    - ``target``: what the egress policy is asked about, by default the channel's own target; for a Unix socket, which
      has no name that a policy could know, or for a tunnel
    - ``balanced``: the channel spreads its calls over several servers (a service config with ``round_robin``), so each
      call carries a FULL frame. Undeclared, that is noticed by the servers' ids, at the price of a few refused calls

    Raises :class:`~otelctx.errors.ConfigError` for a channel of ``grpc.aio``, which takes its interceptors when it is
    made, and for settings in the environment that mean nothing.
    """
    if isinstance(channel, grpc.aio.Channel):
        raise ConfigError(
            "a channel of grpc.aio can't be wrapped: make it with "
            "grpc.aio.insecure_channel(target, interceptors=otelctx.grpc.interceptors())"
        )
    if not isinstance(channel, grpc.Channel):
        kind = type(channel)
        raise ConfigError(f"not a channel of grpc: {kind.__module__}.{kind.__qualname__}")
    if isinstance(getattr(channel, "_interceptor", None), _Interceptor):
        return channel
    if node is None:
        default_node()  # an environment that is wrong is reported here, and not by the first call
    party = Party(node, tracer_provider, meter_provider)
    where = parse(target) if target is not None else target_of(channel)
    return cast(T, grpc.intercept_channel(channel, _Interceptor(party, where, balanced)))


def target_of(channel: Any) -> Target:
    """The target that ``channel``, or the one inside, was made with. gRPC has no public name for it; if that changes,
    no context leaves by such a channel."""
    for _ in range(_DEPTH):
        found = getattr(channel, "target", None)
        if callable(found):
            found = found()
        if isinstance(found, bytes | str):
            return parse(found.decode("utf-8", "replace") if isinstance(found, bytes) else found)
        channel = getattr(channel, "_channel", None)
    return UNKNOWN


class _Interceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    def __init__(self, party: Party, target: Target, balanced: bool) -> None:
        self._party, self._target, self._balanced = party, target, balanced

    def _start(self, details: Any, body: int | None) -> ClientCall:
        return start(self._party, self._target, details.method, None if self._balanced else body)

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return self._unary(continuation, client_call_details, request, size_of(request))

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return self._unary(continuation, client_call_details, request_iterator, None)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return self._stream(continuation, client_call_details, request, streams=False)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return self._stream(continuation, client_call_details, request_iterator, streams=True)

    def _unary(self, continuation: Any, details: Any, request: Any, body: int | None) -> Any:
        """``continuation`` returns when the call is over, or at once if the application asked for a future."""
        if suppressed():
            return continuation(details, request)
        call = self._start(details, body)
        if body is None:
            request = _within(request, call.context)
        outcome = send(call, continuation, details, request)
        while outcome.done():
            if not report(call, outcome, initial=True):
                return outcome
            call = call.again()
            try:
                outcome = send(call, continuation, details, request)
            except Exception:  # as on a channel that has been closed meanwhile: the refusal is the answer
                return outcome
        return UnaryFuture(call, outcome, continuation, details, request, initial=body is not None)

    def _stream(self, continuation: Any, details: Any, request: Any, *, streams: bool) -> Any:
        if suppressed():
            return continuation(details, request)
        call = self._start(details, None)
        if streams:
            request = _within(request, call.context)
        return _Stream(call, send(call, continuation, details, request))


def _within(requests: Any, context: Context) -> Iterator[Any]:
    """``requests``, made with the span as the current one: gRPC asks for them in a thread of its own."""
    iterator = iter(requests)
    while True:
        token = otel_context.attach(context)
        try:
            request = next(iterator)
        except StopIteration:
            return
        finally:
            otel_context.detach(token)
        yield request


class _Stream:
    """A call whose answers are a stream; in all else the call inside. Its end is also seen if nobody reads to it.

    gRPC's own thread keeps what it calls back, so that it must not hold the call: one that is dropped unread would
    never be cancelled.
    """

    def __init__(self, call: ClientCall, inner: Any) -> None:
        self._call, self._inner = call, inner
        known = weakref.ref(inner)

        def over() -> None:
            found = known()
            if found is None:  # dropped
                call.answered("CANCELLED", None, (), cancelled=True)
            else:
                report(call, found)

        watch = getattr(inner, "add_callback", None)  # an interceptor further in may have put an iterator in its place
        if watch is not None and not watch(over):
            report(call, inner)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._inner)
        except StopIteration:
            report(self._call, self._inner)
            raise
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            report(self._call, self._inner if hasattr(self._inner, "code") else error)
            raise

    next = __next__


_IS: Final[tuple[Callable[[type], type], ...]] = (grpc.Call.register, grpc.Future.register)
for _register in _IS:
    _register(_Stream)
    _register(UnaryFuture)
