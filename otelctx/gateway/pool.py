"""Connections to one upstream: the last used is used again, for as long as the other side keeps it for certain."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Final

from otelctx.gateway.connection import Connection
from otelctx.gateway.failures import ConnectFailed, ConnectTimeout

__all__ = ["Pool"]

# uvicorn closes an idle connection after five seconds. A request that meets the closing one is lost if it may not be
# repeated, so it must not be tried.
_IDLE: Final = 4.0
_KEPT: Final = 256


class Pool:
    """Every step takes the same time however many connections are open. Belongs to one event loop."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._ssl = context
        self._idle: deque[tuple[float, Connection]] = deque()

    async def take(self, within: float | None) -> Connection:
        """A connection that nobody uses. Raises :class:`ConnectFailed`; ``within`` in seconds."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            since, connection = self._idle.pop()
            if not connection.closed and now - since < _IDLE:
                return connection
            connection.abort()
        return await self.connect(within)

    async def connect(self, within: float | None) -> Connection:
        """A new connection."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within):
                _, connection = await loop.create_connection(Connection, self._host, self._port, ssl=self._ssl)
        except TimeoutError:
            raise ConnectTimeout("the upstream could not be reached in time") from None
        except OSError as error:
            raise ConnectFailed(f"the upstream can't be reached: {error.strerror or type(error).__name__}") from error
        return connection

    def give(self, connection: Connection) -> None:
        """The request on it is over: keep it for another, or close it."""
        if not connection.finish() or len(self._idle) >= _KEPT:
            connection.abort()
            return
        now = asyncio.get_running_loop().time()
        while self._idle and now - self._idle[0][0] >= _IDLE:
            self._idle.popleft()[1].abort()
        self._idle.append((now, connection))

    def close(self) -> None:
        """Close the idle ones. Those in use are closed when they are given back."""
        while self._idle:
            self._idle.pop()[1].abort()
