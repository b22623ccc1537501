"""Telemetry leaves before a server does: some end by the signal that has stopped them, and nothing runs after that."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread, current_thread, main_thread
from time import monotonic
from typing import Any, Final

from opentelemetry import _logs, metrics, trace

from otelctx.asgi.types import App, Message, Receive, Scope, Send

__all__ = ["flush", "flushing", "unflushed"]

_FLUSHES: Final = "otelctx.flushes"  # in a lifespan's scope
_LAST: Final = ("lifespan.shutdown.complete", "lifespan.shutdown.failed")
_PROVIDERS: Final[tuple[Callable[[], Any], ...]] = (
    trace.get_tracer_provider,
    metrics.get_meter_provider,
    _logs.get_logger_provider,
)


def flush(timeout: float = 3.0) -> None:
    """Let all three providers send what they hold; never longer than ``timeout`` seconds, with or without success."""
    deadline = monotonic() + timeout
    threads = []
    for get in _PROVIDERS:
        send = getattr(get(), "force_flush", None)
        if send is not None:  # the API's own providers have nothing to send
            threads.append(Thread(target=_quietly, args=(send,), name="otelctx-flush", daemon=True))
            threads[-1].start()
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))


def _quietly(send: Callable[[], object]) -> None:
    try:
        send()
    except Exception:  # the SDK raises what it could not deliver, and has logged it
        return


def flushing(scope: Scope, send: Send) -> Send:
    """``send`` of a lifespan, which flushes before the application's last word: no request is under way by then, and a
    server that has been stopped by a signal may raise it once more and be gone, or end a worker without an exit.

    Once a lifespan, whoever of ours is around it. Only in the main thread, where servers are: in another one, as a
    test's client makes it, the process goes on, and nobody should wait there for a collector that is not there.
    """
    if _FLUSHES in scope or current_thread() is not main_thread():
        return send
    scope[_FLUSHES] = True

    async def last(message: Message) -> None:
        if message["type"] in _LAST:
            flush()
        await send(message)

    return last


def unflushed(app: App) -> App:
    """``app`` for a server that delivers its telemetry after its end: waiting for an absent collector at the lifespan's
    end too would make that end last twice as long."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            scope[_FLUSHES] = True
        await app(scope, receive, send)

    return served
