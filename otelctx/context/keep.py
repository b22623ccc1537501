"""Context that stays with the work it belongs to: in each step of a generator, and in another thread.

A generator has no context of its own. Each step runs in that of whoever asks for it, so a response's body that is
streamed after its endpoint has returned finds neither the endpoint's span nor its session; and a ``with`` block around
a ``yield`` is entered in the context of one step and left in that of another, perhaps of another task, which
OpenTelemetry reports as "was created in a different Context".
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial, wraps
from types import coroutine
from typing import Any, ParamSpec, TypeVar, cast

from otelctx.errors import ConfigError

__all__ = ["in_context", "keep_context"]

T = TypeVar("T")
P = ParamSpec("P")


def keep_context(source: T) -> T:
    """Run each step of a generator, sync or async, in one context of its own: a copy of the current one.

    What is current here, a span and a session, is current in all of ``source``, whoever takes its steps, in whichever
    task or thread. What its body attaches stays in it across its yields, and is undone there when it ends, is closed,
    cancelled or left to the garbage collector. ``source`` must not have been started. Of a function that makes
    generators, as a decorator, the context is copied at each call::

        @otelctx.keep_context
        async def tokens(prompt: str) -> AsyncIterator[str]:
            with tracer.start_as_current_span("generate"):
                async for token in model(prompt):
                    yield token

    The result is a generator of the same kind, or a function that returns one. Raises
    :class:`~otelctx.errors.ConfigError` for anything else.

    What is dropped as part of a reference cycle, Python finalises piece by piece: also the generators that ``with``
    blocks are often made of, each in the context that happens to be current. Close a generator that is not read to its
    end, as ``contextlib.aclosing`` and web frameworks do, and nothing depends on that.
    """
    if inspect.isasyncgen(source):
        return cast("T", _async(source, copy_context()))
    if inspect.isgenerator(source):
        return cast("T", _steps(source, copy_context()))
    if not inspect.isasyncgenfunction(source) and not inspect.isgeneratorfunction(source):
        raise ConfigError(
            f"keep_context() takes a generator, sync or async, or a function that has a yield in it, not {source!r}"
        )
    make: Any = source

    @wraps(make)
    def kept(*args: Any, **kwargs: Any) -> Any:
        return keep_context(make(*args, **kwargs))

    return cast("T", kept)


def in_context(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, for another thread: it runs in a copy of the context that is current here.

    For executors and threads, which run what they are given in their own, empty context::

        pool.submit(otelctx.in_context(work), item)
        await loop.run_in_executor(None, otelctx.in_context(work), item)

    It may be called any number of times, also at once, as ``pool.map`` does. Raises
    :class:`~otelctx.errors.ConfigError` for a coroutine function, since a task has the context that it is created in,
    and for one that makes generators, whose body runs later: that is for :func:`keep_context`.
    """
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"in_context() takes a plain function, not {function!r}: a task takes its context along")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"in_context() takes a plain function, not {function!r}: give keep_context() what it makes")
    context = copy_context()

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return context.copy().run(function, *args, **kwargs)  # a context can be entered once at a time

    return run


def _steps(inner: Generator[Any, Any, T], context: Context) -> Generator[Any, Any, T]:
    """``inner``, each of its steps in ``context``. What comes from outside is passed in as it is."""
    run = context.run
    step: Callable[[], Any] = partial(inner.send, None)
    while True:
        try:
            value = run(step)
        except StopIteration as stop:
            return cast("T", stop.value)
        finally:
            del step  # an exception in it has this frame in its traceback
        try:
            sent = yield value
        except BaseException as error:
            step = partial(inner.throw, error)
        else:
            step = partial(inner.send, sent)


@coroutine
def _within(step: Awaitable[T], context: Context) -> Generator[Any, Any, T]:
    """Await ``step`` in ``context``, which is entered only while ``step`` runs, and not while it waits."""
    return (yield from _steps(step.__await__(), context))


async def _async(inner: AsyncGenerator[Any, Any], context: Context) -> AsyncGenerator[Any, Any]:
    """``inner``, each of its steps in ``context``. Itself it holds nothing that depends on one, so that an event loop
    may close it from any task."""
    ending = _Ending(context)
    step = ending.watched(inner)
    while True:
        try:
            value = await _within(step, context)
        except StopAsyncIteration:
            return
        finally:
            del step
        try:
            sent = yield value
        except GeneratorExit:
            await ending.close(inner)
            raise
        except BaseException as error:
            step = inner.athrow(error)
        else:
            step = inner.asend(sent)


class _Ending:
    """How the inner generator is closed: once, in its context.

    The garbage collector finalises the generators of a cycle in any order. The inner one's own finaliser, which is the
    event loop's, would close it in a task with another context; so it gets this one. It holds no generator itself: each
    holds its finaliser.
    """

    __slots__ = ("_begun", "_context", "_finalizer")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._begun = False
        self._finalizer: Callable[[Any], Any] | None = None

    def watched(self, inner: AsyncGenerator[T, Any]) -> Awaitable[T]:
        """The first step of ``inner``; it is with this step that a generator looks for a finaliser."""
        hooks = sys.get_asyncgen_hooks()
        self._finalizer = hooks.finalizer
        sys.set_asyncgen_hooks(None, self._finalise)
        try:
            return inner.__anext__()
        finally:
            sys.set_asyncgen_hooks(*hooks)

    async def close(self, inner: AsyncGenerator[Any, Any]) -> None:
        if not self._begun:
            self._begun = True
            await _within(inner.aclose(), self._context)

    def _finalise(self, inner: AsyncGenerator[Any, Any]) -> None:
        """``inner`` is garbage. The event loop, if there is one, closes what it takes for a generator in a task."""
        closer = _Closer(inner, self)
        if self._finalizer is not None:
            self._finalizer(closer)
        if not closer.taken:
            # The loop is closed, or there was none: as far as it can be done without waiting, it is done here.
            with suppress(StopIteration):
                self.close(inner).send(None)


class _Closer:
    """``inner`` as its event loop's finaliser sees it."""

    __slots__ = ("__weakref__", "_ending", "_inner", "taken")

    def __init__(self, inner: AsyncGenerator[Any, Any], ending: _Ending) -> None:
        self._inner = inner
        self._ending = ending
        self.taken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def aclose(self) -> Awaitable[None]:
        self.taken = True
        return self._ending.close(self._inner)
