"""Telemetry leaves before a server does: some end by the signal that has stopped them, and nothing runs after that."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, current_thread, main_thread
from time import monotonic
from typing import Any, Final

from opentelemetry import _logs, metrics, trace

from otelctx.asgi.types import App, Message, Receive, Scope, Send

__all__ = ["flush", "flush_aside", "flush_with_uvicorn", "flushing", "unanswered", "unflushed"]

_FLUSHES: Final = "otelctx.flushes"  # in a lifespan's scope
_HOOKED: Final = "_otelctx_flushes"  # of a server
_LAST: Final = ("lifespan.shutdown.complete", "lifespan.shutdown.failed")
_PROVIDERS: Final[tuple[Callable[[], Any], ...]] = (
    trace.get_tracer_provider,
    metrics.get_meter_provider,
    _logs.get_logger_provider,
)
# What was waited for in vain.
_unanswered: Final[list[tuple[object, Thread]]] = []


def flush(timeout: float = 3.0) -> None:
    """Let all three providers send what they hold; never longer than ``timeout`` seconds, with or without success."""
    deadline = monotonic() + timeout
    flushes: list[tuple[object, Thread]] = []
    for get in _PROVIDERS:
        provider = get()
        send = getattr(provider, "force_flush", None)
        if send is not None:  # the API's own providers have nothing to send
            thread = Thread(target=_quietly, args=(send,), name="otelctx-flush", daemon=True)
            thread.start()
            flushes.append((provider, thread))
    for _, thread in flushes:
        thread.join(max(0.0, deadline - monotonic()))
    _unanswered[:] = [(provider, thread) for provider, thread in flushes if thread.is_alive()]


def unanswered(provider: object) -> bool:
    """Whether :func:`flush` has waited for ``provider`` in vain, and what it has begun is still under way: who ends the
    process after that need not wait for as long once more."""
    return any(of is provider and thread.is_alive() for of, thread in _unanswered)


def _quietly(send: Callable[[], object]) -> None:
    try:
        send()
    except Exception:  # the SDK raises what it could not deliver, and has logged it
        return


async def flush_aside() -> None:
    """:func:`flush`, while the event loop goes on: others may still have to end. Cancelled, it is not waited for."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # trio's: it has nothing else to do by then
        _quietly(flush)
        return
    flushed = asyncio.Event()

    def run() -> None:
        try:
            _quietly(flush)
        finally:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(flushed.set)

    # Of its own and no worker of the loop's pool, for whose end the loop's own end would wait.
    with suppress(RuntimeError):  # there may be no more threads to be had: then nothing can be sent
        Thread(target=run, name="otelctx-flushing", daemon=True).start()
        await flushed.wait()


def flushing(scope: Scope, send: Send) -> Send:
    """``send`` of a lifespan, which flushes before the application's last word: no request is under way by then, and a
    server that has been stopped by a signal may raise it once more and be gone, or end a worker without an exit.

    Once a lifespan, whoever of ours is around it, and not where the server's own end does it. Only in the main thread,
    where servers are: in another one, as a test's client makes it, the process goes on, and nobody should wait there
    for a collector that is not there.
    """
    if _FLUSHES in scope or current_thread() is not main_thread():
        return send
    scope[_FLUSHES] = True
    if flush_with_uvicorn():
        return send

    async def last(message: Message) -> None:
        if message["type"] in _LAST:
            await flush_aside()
        await send(message)

    return last


def flush_with_uvicorn() -> bool:
    """Have the uvicorn that runs in this thread flush at its end; whether there is one. May be called again.

    Having ended gracefully it restores the handler of SIGTERM that it has found, mostly none, and raises the signal
    once more. A handler set while it runs is taken away just then, and of an application without a lifespan nothing is
    called any more: what its ``shutdown()`` does is the last that is done.
    """
    server: Any = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    known = getattr(sys.modules.get("uvicorn"), "Server", None)
    if known is None or not isinstance(server, known):
        return False
    if not hasattr(server, _HOOKED):
        inner = server.shutdown

        async def shutdown(*args: Any, **kwargs: Any) -> None:
            await inner(*args, **kwargs)
            if not server.force_exit:
                await flush_aside()

        server.shutdown = shutdown
        setattr(server, _HOOKED, True)
    return True


def unflushed(app: App) -> App:
    """``app`` for a server that delivers its telemetry after its end: waiting for an absent collector at the lifespan's
    end too would make that end last twice as long."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            scope[_FLUSHES] = True
        await app(scope, receive, send)

    return served
