"""The answer to a sync call with one answer, while it is under way: perhaps it has to be sent twice."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock
from typing import Any

import grpc
from grpc import StatusCode
from opentelemetry import context as otel_context

from otelctx.grpc.call import ClientCall
from otelctx.grpc.status import name_of

__all__ = ["Details", "UnaryFuture", "report", "send"]


class Details(grpc.ClientCallDetails):
    """``details`` with other metadata and another timeout; what the caller has given is left as it is."""

    def __init__(self, details: Any, metadata: Any, timeout: float | None) -> None:
        self.method = details.method
        self.timeout = timeout
        self.metadata = tuple(metadata)
        self.credentials = details.credentials
        self.wait_for_ready = getattr(details, "wait_for_ready", None)
        self.compression = getattr(details, "compression", None)


def send(call: ClientCall, continuation: Any, details: Any, request: Any) -> Any:
    """What ``continuation`` returns for the call as it goes out."""
    outgoing = Details(details, call.metadata(details.metadata), call.timeout(details.timeout))
    token = otel_context.attach(call.sending_context())
    try:
        return continuation(outgoing, request)
    except BaseException as error:
        call.failed(error)
        raise
    finally:
        otel_context.detach(token)


def report(call: ClientCall, outcome: Any, *, initial: bool = False) -> bool:
    """``outcome`` is over: tell ``call``, and whether it has to be sent again.

    ``initial``: its initial metadata are known, too. To ask for those of a stream waits for them, even at its end, and
    in the thread that would bring them it waits for ever.
    """
    if not hasattr(outcome, "code"):
        return call.answered("OK", None, ())
    code = outcome.code()
    if code is None or (code is StatusCode.INTERNAL and outcome.trailing_metadata() is None):
        # Not an answer, but what an interceptor further in has raised.
        try:
            error = outcome.exception()
        except (grpc.FutureCancelledError, grpc.RpcError):
            error = None
        if error is not None and not isinstance(error, grpc.RpcError):
            call.failed(error)
            return False
    cancelled = code is StatusCode.CANCELLED and outcome.cancelled()
    first = outcome.initial_metadata() if initial else None
    return call.answered(name_of(code), outcome.details(), outcome.trailing_metadata(), first, cancelled=cancelled)


class UnaryFuture:
    """Both ``grpc.Future`` and ``grpc.Call``. It is done when what came back is in the scope, and not before."""

    def __init__(
        self, call: ClientCall, inner: Any, continuation: Any, details: Any, request: Any, *, initial: bool
    ) -> None:
        """``initial``: see :func:`report`."""
        self._call = call
        self._initial = initial
        self._inner = inner
        self._again = (continuation, details, request)
        self._lock = Lock()
        self._settled = Event()
        self._cancelled = False
        self._callbacks: list[Callable[[], None]] = []
        self._watch()

    def _watch(self) -> None:
        if not self._inner.add_callback(self._over):
            self._over()

    def _over(self) -> None:
        """In a thread of gRPC, which must not wait."""
        if report(self._call, self._inner, initial=self._initial) and not self._cancelled and self._repeat():
            self._watch()
            return
        with self._lock:
            self._settled.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def _repeat(self) -> bool:
        """Send the call again; whether that could be done. If not, as on a channel that has been closed meanwhile, the
        refusal is the answer: nobody would hear an exception here."""
        self._call = self._call.again()
        try:
            self._inner = send(self._call, *self._again)
        except Exception:
            return False
        if self._cancelled:  # in between
            self._inner.cancel()
        return True

    def _wait(self, timeout: float | None = None) -> Any:
        if not self._settled.wait(timeout):
            raise grpc.FutureTimeoutError()
        return self._inner

    # as a future

    def result(self, timeout: float | None = None) -> Any:
        return self._wait(timeout).result()

    def exception(self, timeout: float | None = None) -> Any:
        return self._wait(timeout).exception()

    def traceback(self, timeout: float | None = None) -> Any:
        return self._wait(timeout).traceback()

    def cancel(self) -> bool:
        self._cancelled = True
        return bool(self._inner.cancel())

    def cancelled(self) -> bool:
        return bool(self._inner.cancelled())

    def done(self) -> bool:
        return self._settled.is_set()

    def running(self) -> bool:
        return not self._settled.is_set()

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        if not self.add_callback(lambda: fn(self)):
            fn(self)

    # as a call

    def add_callback(self, callback: Callable[[], None]) -> bool:
        with self._lock:
            if self._settled.is_set():
                return False
            self._callbacks.append(callback)
            return True

    def initial_metadata(self) -> Any:
        if self._call.refusable:  # they may be those of a refusal
            self._wait()
        return self._inner.initial_metadata()

    def trailing_metadata(self) -> Any:
        return self._wait().trailing_metadata()

    def code(self) -> Any:
        return self._wait().code()

    def details(self) -> Any:
        return self._wait().details()

    def is_active(self) -> bool:
        return not self._settled.is_set()

    def time_remaining(self) -> Any:
        return self._inner.time_remaining()
