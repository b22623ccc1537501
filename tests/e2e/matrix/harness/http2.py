"""The same client over HTTP/2, with prior knowledge and without TLS."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import InvalidBodyLengthError
from h2.settings import SettingCodes
from harness.http1 import TIMEOUT, Answer, Lines

__all__ = ["Http2"]

# h2 writes and reads header names and values as they are, so that bytes arrive as bytes.
_CONFIG = H2Configuration(
    client_side=True, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
)


class Http2:
    """One connection; a token is the id of a stream."""

    version = "2"

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self._h2 = H2Connection(_CONFIG)
        self._answers: dict[int, Answer] = {}
        self._over: set[int] = set()
        self._read: dict[int, int] = {}
        self._alive, self._met, self._held = True, False, False
        self._h2.initiate_connection()
        self._flush()
        self._until(lambda: self._met)

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
        self._flush()

    def _flush(self) -> None:
        if not self._held and (data := self._h2.data_to_send()):
            self._socket.sendall(data)

    def _fill(self) -> None:
        try:
            data = self._socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self._alive = False
            return
        self._met = True
        try:
            events = self._h2.receive_data(data)
        except InvalidBodyLengthError:  # a body where there must be none: nothing can be read after that
            self._alive = False
            return
        for event in events:
            self._take(event)
        with suppress(ConnectionError):
            self._flush()

    def _take(self, event: Event) -> None:
        stream = getattr(event, "stream_id", None)
        answer = self._answers.get(stream or 0)
        if answer is None:
            return
        if isinstance(event, InformationalResponseReceived):
            answer.hints.append(_status(event.headers))
        elif isinstance(event, ResponseReceived):
            answer.status = _status(event.headers)
            answer.headers = [(bytes(name), bytes(value)) for name, value in event.headers]
        elif isinstance(event, DataReceived):
            answer.body += event.data
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, TrailersReceived):
            answer.trailers = [(bytes(name), bytes(value)) for name, value in event.headers]
        elif isinstance(event, StreamEnded):
            answer.whole = True
            self._over.add(event.stream_id)
        elif isinstance(event, StreamReset):
            self._over.add(event.stream_id)

    def _until(self, done: Callable[[], bool]) -> bool:
        while not done():
            if not self._alive:
                return False
            self._fill()
        return True

    def send(self, method: str, target: bytes, headers: Lines, body: bytes | None = None, more: bool = False) -> int:
        first = [(b":method", method.encode()), (b":scheme", b"http"), (b":authority", b"matrix.test")]
        return self._open([*first, (b":path", target)], headers, body, more)

    def _open(self, first: Lines, headers: Lines, body: bytes | None, more: bool) -> int:
        stream = self._h2.get_next_available_stream_id()
        lines = [*first, *((name.lower(), value) for name, value in headers)]
        self._answers[stream], self._read[stream] = Answer(), 0
        self._h2.send_headers(stream, lines, end_stream=body is None and not more)
        if body is not None:
            self._body(stream, body, not more)
        self._flush()
        return stream

    def _body(self, stream: int, body: bytes, end: bool) -> None:
        """In frames as large as the other side takes them, as its window allows."""
        while True:
            self._flush()
            self._until(lambda: self._h2.local_flow_control_window(stream) > 0)
            size = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            piece, body = body[:size], body[size:]
            self._h2.send_data(stream, piece, end_stream=end and not body)
            if not body:
                return

    def piece(self, token: int, data: bytes) -> None:
        self._h2.send_data(token, data, end_stream=True)
        self._flush()

    def pieces(self, target: bytes, headers: Lines, parts: Iterable[bytes]) -> int:
        token = self.send("POST", target, headers, more=True)
        for part in parts:
            self._body(token, part, False)
        self.piece(token, b"")
        return token

    def wait_hint(self, token: int) -> int:
        answer = self._answers[token]
        self._until(lambda: bool(answer.hints))
        return answer.hints[0]

    def read(self, token: int) -> Answer:
        self._until(lambda: token in self._over)
        return self._answers[token]

    def so_far(self, token: int) -> Answer:
        return self._answers[token]

    def read_until(self, token: int, piece: bytes) -> None:
        answer = self._answers[token]
        assert self._until(lambda: piece in answer.body), answer

    def leave(self, token: int) -> None:
        self._h2.reset_stream(token, ErrorCodes.CANCEL)
        self._flush()

    def open_websocket(self, target: bytes, headers: Lines) -> int:
        """RFC 8441."""
        assert self._h2.remote_settings.get(SettingCodes.ENABLE_CONNECT_PROTOCOL) == 1, "no websockets over HTTP/2"
        first = [(b":method", b"CONNECT"), (b":protocol", b"websocket"), (b":scheme", b"http")]
        first += [(b":authority", b"matrix.test"), (b":path", target)]
        return self._open(first, [(b"sec-websocket-version", b"13"), *headers], None, True)

    def handshake(self, token: int) -> tuple[bool, Answer]:
        answer = self._answers[token]
        self._until(lambda: answer.status is not None or token in self._over)
        if answer.status == 200:
            return True, answer
        return False, self.read(token)

    def raw(self, data: bytes, token: int = 0) -> None:
        self._h2.send_data(token or max(self._answers), data)
        self._flush()

    def data(self, token: int) -> bytes:
        answer, seen = self._answers[token], self._read[token]
        self._until(lambda: len(answer.body) > seen or token in self._over)
        self._read[token] = len(answer.body)
        return answer.body[seen:]

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _status(headers: Lines) -> int:
    return int(dict(headers)[b":status"])
