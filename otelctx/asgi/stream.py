"""How far a response has come: a pure table over ASGI's response messages, without clock or I/O."""

from __future__ import annotations

from typing import Any, Final

from otelctx.asgi.types import Message

__all__ = ["BODY", "START", "TRAILERS", "Progress", "status_code"]

START: Final = "http.response.start"
BODY: Final = "http.response.body"
TRAILERS: Final = "http.response.trailers"

# message type → (counts as a chunk of the body, the key that says that more of it follows)
_PARTS: Final[dict[str, tuple[int, str]]] = {
    BODY: (1, "more_body"),
    "http.response.zerocopysend": (1, "more_body"),
    "http.response.pathsend": (1, ""),  # the whole body is one file
    TRAILERS: (0, "more_trailers"),
}


def status_code(given: Any) -> int:
    """The status that a response is given: 100 to 999, also as text, which some servers take; 0 for what is none."""
    if type(given) is not int:
        try:
            given = int(given)
        except Exception:  # whatever it is, it is for the server to refuse
            return 0
    return given if 100 <= given <= 999 else 0


class Progress:
    """``status`` is ``None`` until the response has started, and a :func:`status_code` then; ``chunks`` counts body
    messages.

    ``disconnected``: the client has gone before the response was complete, and before it had started if ``unheard``.
    ``cancelled``: whoever runs the application has cut it off.
    """

    __slots__ = ("_trailers", "cancelled", "chunks", "complete", "disconnected", "status", "unheard")

    def __init__(self) -> None:
        self.status: int | None = None
        self.chunks = 0
        self.complete = self.disconnected = self.unheard = self.cancelled = False
        self._trailers = False

    def start(self, message: Message) -> None:
        """Take the head of the response into account."""
        self.status = status_code(message.get("status"))
        self._trailers = bool(message.get("trailers"))

    def see(self, message: Message) -> bool:
        """Take ``message`` into account; ``True`` if the response is complete with it."""
        kind = message["type"]
        if kind == BODY and not message.get("more_body", False):  # the end of almost every response
            self.chunks += 1
            self.complete = self.complete or not self._trailers
            return self.complete
        if kind == START:
            self.start(message)
            return False
        part = _PARTS.get(kind)
        if part is None:
            return False
        chunk, more = part
        self.chunks += chunk
        if not message.get(more, False) and (not chunk or not self._trailers):
            self.complete = True
        return self.complete
