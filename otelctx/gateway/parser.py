"""The response that comes over one connection, byte by byte. Sans-I/O, around llhttp.

llhttp is strict here: a length stated twice, or beside a transfer coding, and characters that have no place in a header
are errors. What it leaves to its user is done here: bounds, 1xx responses, bodies that end with the connection, HEAD,
and bytes after the end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import httptools

from otelctx.asgi.types import Headers
from otelctx.gateway.failures import BadResponse, UpstreamClosed

__all__ = ["Head", "ResponseParser"]

MAX_HEAD: Final = 65536  # bytes of all header lines
MAX_LINES: Final = 256
_BODILESS: Final = (204, 304)


@dataclass(frozen=True, slots=True)
class Head:
    """``version`` as ``1.1``; names of ``headers`` in lower case."""

    status: int
    version: str
    headers: Headers


class ResponseParser:
    """One response to one request. ``head`` is ``None`` until it is here; ``complete`` once the body is, too.

    ``reusable`` says after that whether another request may follow on the connection.
    """

    __slots__ = (
        "_bodiless",
        "_chunks",
        "_coded",
        "_framed",
        "_headers",
        "_over",
        "_parser",
        "_room",
        "complete",
        "head",
        "reusable",
        "size",
    )

    def __init__(self, method: str) -> None:
        self.head: Head | None = None
        self.complete = False
        self.reusable = False
        self.size = 0  # bytes of body that nobody has taken yet
        self._bodiless = method == "HEAD"
        self._chunks: deque[bytes] = deque()
        self._headers: Headers = []
        self._room = MAX_HEAD
        self._coded = False  # in a way that nobody here has asked for or can undo
        self._framed = False  # the response says where it ends
        self._over = False  # what llhttp reads now comes after the end
        self._parser: Any = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Raises :class:`BadResponse`. What comes after the end is not wanted: the connection is not reusable."""
        if self.complete:
            self.reusable = False
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.complete:
                self.reusable = False
                return
            raise BadResponse(f"the upstream's response is not HTTP: {error}") from None
        except httptools.HttpParserUpgrade:
            raise BadResponse("the upstream has switched protocols without being asked") from None
        if self._coded:
            raise BadResponse("the upstream's response has a transfer coding other than chunked")
        if self.head is None:
            # Bytes, and not lines: what llhttp holds of a line that is not complete is seen by no callback.
            self._room -= len(data)
        if self._room < 0 or len(self._headers) > MAX_LINES:
            self.head = None
            raise BadResponse("the head of the upstream's response is too large")

    def eof(self) -> None:
        """The connection has ended. Raises :class:`UpstreamClosed` unless the response is, or is by that, complete."""
        self.reusable = False
        if self.complete:
            return
        if self.head is None:
            raise UpstreamClosed("the upstream has closed the connection without a response")
        if self._framed:
            raise UpstreamClosed("the upstream has closed the connection in the middle of a response")
        self.complete = True

    def take(self) -> bytes:
        """The body as far as it is here and has not been taken."""
        chunks, self.size = self._chunks, 0
        data = chunks.popleft() if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        return data

    def close(self) -> None:
        """Let go of llhttp, which holds on to this object."""
        self._parser = None

    # llhttp's callbacks

    def on_message_begin(self) -> None:
        if self.complete:  # what begins here is nobody's, however little of it has come
            self._over = True
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:  # else it is a trailer: there is no way to send one on
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._over:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            return
        self.head = Head(status, self._parser.get_http_version(), self._headers)
        self._coded = any(n == b"transfer-encoding" and v.strip().lower() != b"chunked" for n, v in self._headers)
        self._framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)
        if self._bodiless or status in _BODILESS:
            self._end()

    def on_body(self, body: bytes) -> None:
        if self.complete:
            self.reusable = False
        else:
            self._chunks.append(body)
            self.size += len(body)

    def on_message_complete(self) -> None:
        if self._over:
            self.reusable = False
        elif self.head is None:
            self._headers = []  # 1xx: the response proper is still to come
        elif not self.complete:
            self._end()

    def _end(self) -> None:
        self.complete = True
        self.reusable = self._parser.should_keep_alive()
