"""An HTTP/1.1 client on a bare socket: what it sends is what it is told to, byte by byte."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

__all__ = ["TIMEOUT", "Answer", "Http1", "Lines"]

TIMEOUT = 60.0  # seconds
Lines = Iterable[tuple[bytes, bytes]]


@dataclass
class Answer:
    """``whole``: the body has come to its proper end; ``hints``: statuses of what came before the response."""

    status: int | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False
    hints: list[int] = field(default_factory=list)
    trailers: list[tuple[bytes, bytes]] = field(default_factory=list)

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


class Http1:
    """One connection. Responses are read in the order of their requests."""

    version = "1.1"
    spoken = b"1.1"

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self._pending = b""
        self._methods: list[str] = []
        self._held: bytes | None = None

    def send(self, method: str, target: bytes, headers: Lines, body: bytes | None = None, more: bool = False) -> int:
        """Returns what the others take. ``more``: ``headers`` announce a body that does not follow as a whole."""
        lines = [b"%s %s HTTP/%s" % (method.encode(), target, self.spoken), b"Host: matrix.test"]
        lines += [b"%s: %s" % line for line in headers]
        if body is not None and not more:
            lines.append(b"Content-Length: %d" % len(body))
        self._methods.append(method)
        self.raw(b"\r\n".join(lines) + b"\r\n\r\n" + (body or b""))
        return len(self._methods) - 1

    def raw(self, data: bytes) -> None:
        if self._held is not None:
            self._held += data
        else:
            self._socket.sendall(data)

    def hold(self) -> None:
        """Keep back what is sent, until :meth:`release` sends it in one go."""
        self._held = b""

    def release(self) -> None:
        data, self._held = self._held or b"", None
        self.raw(data)

    def piece(self, token: int, data: bytes) -> None:
        """The last piece of the body of a request that was sent with ``more``."""
        self.raw(data)

    def pieces(self, target: bytes, headers: Lines, parts: Iterable[bytes]) -> int:
        """A POST whose length nobody has announced."""
        token = self.send("POST", target, [*headers, (b"Transfer-Encoding", b"chunked")], more=True)
        for part in parts:
            self.raw(b"%x\r\n%s\r\n" % (len(part), part))
        self.raw(b"0\r\n\r\n")
        return token

    def _fill(self) -> bool:
        try:
            data = self._socket.recv(65536)
        except ConnectionError:
            return False
        self._pending += data
        return bool(data)

    def read_head(self) -> Answer | None:
        while b"\r\n\r\n" not in self._pending:
            if not self._fill():
                return None
        head, _, self._pending = self._pending.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        answer = Answer(int(first.split(b" ")[1]))
        for line in lines:
            name, _, value = line.partition(b":")
            answer.headers.append((name.strip().lower(), value.strip()))
        return answer

    def wait_hint(self, token: int) -> int:
        """The status of the next informational response."""
        answer = self.read_head()
        assert answer is not None
        assert answer.status is not None
        return answer.status

    def read(self, token: int) -> Answer:
        """The next response, to its end or as far as it comes."""
        hints: list[int] = []
        while (answer := self.read_head()) is not None and answer.status is not None and answer.status < 200:
            hints.append(answer.status)
        if answer is None:
            return Answer(hints=hints)
        answer.hints = hints
        method = self._methods[token]
        if method == "HEAD" or answer.status in (204, 304):
            answer.whole = True
        elif answer.get(b"transfer-encoding") == b"chunked":
            answer.whole = self._chunks(answer)
        elif (length := answer.get(b"content-length")) is not None:
            answer.whole = self._exactly(int(length), answer)
        else:
            while self._fill():
                pass
            answer.body, self._pending = self._pending, b""
        return answer

    def _exactly(self, size: int, answer: Answer) -> bool:
        while len(self._pending) < size and self._fill():
            pass
        answer.body += self._pending[:size]
        whole = len(self._pending) >= size
        self._pending = self._pending[size:]
        return whole

    def _chunks(self, answer: Answer) -> bool:
        while True:
            while b"\r\n" not in self._pending:
                if not self._fill():
                    return False
            size, _, self._pending = self._pending.partition(b"\r\n")
            before = answer.body
            if not self._exactly(int(size, 16) + 2, answer):
                return False
            answer.body = answer.body[:-2]
            if answer.body == before:
                return True

    def so_far(self, token: int) -> Answer:
        """The response with what has come in of it."""
        return self.read(token)

    def read_until(self, token: int, piece: bytes) -> None:
        """Go on until ``piece`` has come in, wherever."""
        while piece not in self._pending:
            assert self._fill(), self._pending

    def leave(self, token: int) -> None:
        """The client goes away in the middle."""
        self.close()

    def open_websocket(self, target: bytes, headers: Lines) -> int:
        key = base64.b64encode(os.urandom(16))
        upgrade = [(b"Upgrade", b"websocket"), (b"Connection", b"Upgrade")]
        upgrade += [(b"Sec-WebSocket-Key", key), (b"Sec-WebSocket-Version", b"13")]
        return self.send("GET", target, [*upgrade, *headers])

    def handshake(self, token: int) -> tuple[bool, Answer]:
        """Whether the websocket was accepted, and the response."""
        while not self._pending.endswith(b"\r\n\r\n") and b"\r\n\r\n" not in self._pending:
            if not self._fill():
                return False, Answer()
        if self._pending.split(b" ")[1] != b"101":
            return False, self.read(token)
        answer = self.read_head()
        assert answer is not None
        return True, answer

    def data(self, token: int) -> bytes:
        """The next bytes of an accepted websocket; empty at its end."""
        if not self._pending:
            self._fill()
        data, self._pending = self._pending, b""
        return data

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
