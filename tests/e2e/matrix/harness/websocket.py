"""A websocket over either client: wsproto's frames on HTTP/1.1's connection or on a stream of HTTP/2."""

from __future__ import annotations

from typing import Any

from harness.http1 import Answer, Lines
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, Ping, TextMessage

__all__ = ["Socket"]


class Socket:
    """``accepted`` and ``answer`` tell of the handshake."""

    def __init__(self, connection: Any, target: bytes, headers: Lines) -> None:
        self._connection = connection
        self._token = connection.open_websocket(target, headers)
        self.accepted: bool
        self.answer: Answer
        self.accepted, self.answer = connection.handshake(self._token)
        self._frames = Connection(ConnectionType.CLIENT)
        self._events: list[Any] = []

    def say(self, text: str) -> None:
        self._connection.raw(self._frames.send(TextMessage(text)))

    def close(self, code: int) -> None:
        """Close from this side, and wait until the other has agreed."""
        self._connection.raw(self._frames.send(CloseConnection(code)))
        self.hear()

    def hear(self) -> str | int | None:
        """The next text, the code of a close, or ``None`` if the connection just ends."""
        while True:
            while self._events:
                event = self._events.pop(0)
                if isinstance(event, TextMessage):
                    return str(event.data)
                if isinstance(event, CloseConnection):
                    return int(event.code)
                if isinstance(event, Ping):
                    self._connection.raw(self._frames.send(event.response()))
            data = self._connection.data(self._token)
            if not data:
                return None
            self._frames.receive_data(data)
            self._events += self._frames.events()

    def ask(self, text: str) -> str | int | None:
        self.say(text)
        return self.hear()

    def drop(self) -> None:
        """Go away without a word."""
        self._connection.leave(self._token)
