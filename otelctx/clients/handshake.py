"""How an attempt is driven: its span is current while the library sends, and what is refused is sent once more.

The same for every library; what differs is passed in: how to send, how to read the head, how to drop a response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from otelctx.clients.attempt import Attempt, Head, Others

__all__ = ["arun", "awithin", "run", "within"]

R = TypeVar("R")


def within(context: Context, call: Callable[[], R]) -> R:
    """``call()`` with ``context`` as the current one."""
    token = otel_context.attach(context)
    try:
        return call()
    finally:
        otel_context.detach(token)


async def awithin(context: Context, call: Callable[[], Awaitable[R]]) -> R:
    """``await call()`` with ``context`` as the current one."""
    token = otel_context.attach(context)
    try:
        result = await call()
    except GeneratorExit:
        # The coroutine is thrown away, by whom and in whose context nobody knows: there is nothing to detach.
        raise
    except BaseException:
        otel_context.detach(token)
        raise
    otel_context.detach(token)
    return result


def run(
    attempt: Attempt,
    others: Others,
    *,
    send: Callable[[Attempt], R],
    head: Callable[[R], Head],
    drop: Callable[[R], object],
) -> tuple[R, Attempt]:
    """The response that the application gets, and the attempt whose body it is: the first, or the repetition.

    ``others`` are modules that instrument the same library. Raises what ``send`` raises.
    """

    def once(current: Attempt) -> R:
        try:
            return within(current.sending_context(others), partial(send, current))
        except BaseException as error:
            current.failed(error)
            raise

    response = once(attempt)
    if attempt.answered(head(response)):
        try:
            drop(response)
        finally:
            attempt.end()
        attempt = attempt.again()
        response = once(attempt)
        attempt.answered(head(response))
    return response, attempt


async def arun(
    attempt: Attempt,
    others: Others,
    *,
    send: Callable[[Attempt], Awaitable[R]],
    head: Callable[[R], Head],
    drop: Callable[[R], Awaitable[object]],
) -> tuple[R, Attempt]:
    """:func:`run`, awaited."""

    async def once(current: Attempt) -> R:
        try:
            return await awithin(current.sending_context(others), partial(send, current))
        except BaseException as error:
            current.failed(error)
            raise

    response = await once(attempt)
    if attempt.answered(head(response)):
        try:
            await drop(response)
        finally:
            attempt.end()
        attempt = attempt.again()
        response = await once(attempt)
        attempt.answered(head(response))
    return response, attempt
