"""Heads of HTTP/1.1 messages out of the bytes of a connection, as a tap sees them. Pure; bodies are skipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Head", "HeadReader"]

_END: Final = b"\r\n\r\n"
_BODILESS: Final = (b"204", b"304")


@dataclass(frozen=True, slots=True)
class Head:
    """First line and header lines of one message; names in lower case."""

    start: bytes
    lines: tuple[tuple[bytes, bytes], ...]

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.lines if key == name]

    def value(self, name: bytes) -> bytes | None:
        """The only or last value of the header ``name``."""
        found = self.values(name)
        return found[-1] if found else None

    def size(self, name: bytes) -> int:
        """Bytes on the wire of all lines of the header ``name``, with ``: `` and line end."""
        return sum(len(name) + len(value) + 4 for value in self.values(name))


class HeadReader:
    """Reads one direction of a connection. Feed it whatever arrives."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._body = 0  # bytes of the current body that are still to come
        self._chunked = False
        self.total = 0

    def feed(self, data: bytes) -> list[Head]:
        """The heads that are complete by now."""
        self.total += len(data)
        self._data += data
        heads: list[Head] = []
        while self._data and self._step(heads):
            pass
        return heads

    def _step(self, heads: list[Head]) -> bool:
        """Take one piece off the front; ``False`` if it isn't there yet."""
        if self._body:
            taken = min(self._body, len(self._data))
            del self._data[:taken]
            self._body -= taken
            return True
        if self._chunked:
            return self._chunk()
        end = self._data.find(_END)
        if end < 0:
            return False
        head = _parse(bytes(self._data[:end]))
        del self._data[: end + len(_END)]
        heads.append(head)
        self._frame(head)
        return True

    def _frame(self, head: Head) -> None:
        if head.start.startswith(b"HTTP/") and (head.start[9:12] in _BODILESS or head.start[9:10] == b"1"):
            return
        self._chunked = b"chunked" in (head.value(b"transfer-encoding") or b"").lower()
        self._body = 0 if self._chunked else int(head.value(b"content-length") or 0)

    def _chunk(self) -> bool:
        end = self._data.find(b"\r\n")
        if end < 0:
            return False
        size = int(bytes(self._data[:end]).split(b";")[0], 16)
        if size:
            del self._data[: end + 2]
            self._body = size + 2
            return True
        # The last chunk: trailers, if any, up to an empty line.
        done = self._data.find(_END, end)
        if done < 0:
            return False
        del self._data[: done + len(_END)]
        self._chunked = False
        return True


def _parse(data: bytes) -> Head:
    start, *rest = data.split(b"\r\n")
    lines = (line.partition(b":") for line in rest)
    return Head(start, tuple((name.strip().lower(), value.strip()) for name, _, value in lines))
