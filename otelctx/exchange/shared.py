"""The shared tier: bases that every worker of a service finds, so that REF and DELTA work behind a balancer.

A tier is a cache in front of nothing: what it does not have, or not in time, costs the sender one FULL frame. So no
request waits longer than ten milliseconds for it, none waits for a write, many that miss the same base ask once, and an
engine that fails is left alone for a while. An ack says SHARED only for what the engine has confirmed.

Nothing in it is believed. What comes back is hashed again and must have the root that was asked for, which a signed
frame has named; so whoever can write to the engine can make bases vanish and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol
from weakref import WeakSet

from otelctx.context.state import EMPTY, State
from otelctx.delta.codec import decode_frame, encode_frame
from otelctx.delta.limits import BASE_BYTES, MAX_FRAME_BYTES, Limits
from otelctx.delta.messages import FrameKind, full
from otelctx.errors import OtelctxError

__all__ = ["BaseStore", "SharedTier"]

_CONFIRMED: Final = 65536  # states whose confirmation is remembered
_ABANDONED: Final = 1.0  # seconds after which a call to the engine is cancelled, whoever waits for it

Key = tuple[str, bytes]


class BaseStore(Protocol):
    """The engine: a key-value store with expiry, shared by all workers. Both may raise whatever they like."""

    async def load(self, key: str) -> bytes | None:
        """What is stored under ``key``, or ``None``."""

    async def store(self, key: str, value: bytes, ttl: float) -> None:
        """Keep ``value`` for ``ttl`` seconds. Returns when that is confirmed, else raises."""


class SharedTier:
    """One engine, used by one node. Each method belongs to the event loop that calls it; several loops may."""

    def __init__(
        self, store: BaseStore, limits: Limits | None = None, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._store = store
        self._limits = limits or Limits()
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Start anew, as in a forked process, whose event loops are others."""
        self._loads: dict[tuple[int, Key], asyncio.Task[State | None]] = {}
        self._late: WeakSet[asyncio.Task[State | None]] = WeakSet()
        self._stores: dict[Key, asyncio.Task[None]] = {}
        self._confirmed: OrderedDict[Key, float] = OrderedDict()  # when the engine last confirmed it
        self._failures = 0
        self._closed_until = float("-inf")

    async def load(self, domain: str, root: bytes) -> State | None:
        """The state with ``root`` (16 bytes, or its first 8) of ``domain``, or ``None`` if it is not there within
        ``limits.shared_deadline``. Raises nothing but the caller's own cancellation."""
        if self._clock() < self._closed_until:
            return None
        key = (domain, root[:BASE_BYTES])
        flight = (id(asyncio.get_running_loop()), key)
        task = self._loads.get(flight)
        if task is None:
            if len(self._loads) >= self._limits.shared_calls:
                return None
            task = self._loads[flight] = asyncio.create_task(self._load(key))
            task.add_done_callback(lambda _: self._loads.pop(flight, None))
        try:
            async with asyncio.timeout(self._limits.shared_deadline):
                state = await asyncio.shield(task)  # others may wait for it: no single one's end is its end
        except TimeoutError:
            if task not in self._late:  # many may wait for one call, and it has failed once
                self._late.add(task)
                self._failed()
            return None
        return state if state is not None and state.root.startswith(root) else None

    async def _load(self, key: Key) -> State | None:
        try:
            async with asyncio.timeout(_ABANDONED):
                value = await self._store.load(_spell(key))
        except Exception:
            self._failed()
            return None
        self._failures = 0
        return None if value is None else _read(value)

    def share(self, domain: str, state: State) -> None:
        """Begin to store ``state``, unless that was confirmed a short while ago. Raises nothing and does not wait."""
        key, now = (domain, state.root[:BASE_BYTES]), self._clock()
        confirmed = self._confirmed.get(key)
        if confirmed is not None and now - confirmed < self._limits.shared_ttl / 2:
            self._confirmed.move_to_end(key)
            return
        if key in self._stores or len(self._stores) >= self._limits.shared_calls or now < self._closed_until:
            return
        task = self._stores[key] = asyncio.create_task(self._keep(key, state))
        task.add_done_callback(lambda _: self._stores.pop(key, None))

    async def _keep(self, key: Key, state: State) -> None:
        began = self._clock()
        try:
            async with asyncio.timeout(_ABANDONED):
                await self._store.store(_spell(key), encode_frame(full(state, table=1)), self._limits.shared_ttl)
        except Exception:
            self._failed()
            return
        self._failures = 0
        self._confirmed[key] = began
        self._confirmed.move_to_end(key)
        if len(self._confirmed) > _CONFIRMED:
            self._confirmed.popitem(last=False)

    def shared(self, domain: str, root: bytes) -> bool:
        """Whether the engine has confirmed the state with ``root`` and keeps it still."""
        confirmed = self._confirmed.get((domain, root[:BASE_BYTES]))
        return confirmed is not None and self._clock() - confirmed < self._limits.shared_ttl

    async def close(self) -> None:
        """Wait for the writes under way."""
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._stores.values(), return_exceptions=True)

    def _failed(self) -> None:
        self._failures += 1
        if self._failures >= self._limits.shared_failures:
            self._closed_until = self._clock() + self._limits.shared_pause
            self._failures = 0


def _spell(key: Key) -> str:
    domain, root = key
    return f"otelctx:base:{domain}:{root.hex()}"


def _read(value: bytes) -> State | None:
    """The state in ``value``, hashed again: an engine may hold anything."""
    if len(value) > MAX_FRAME_BYTES:
        return None
    try:
        frame = decode_frame(value)
        state = EMPTY.apply(frame.put, ())
    except OtelctxError:
        return None
    return state if frame.kind is FrameKind.FULL and state.root == frame.root else None
