"""What this process knows of the origins it sends to: one link each, the least recently used given up over a budget."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from otelctx.delta.limits import Limits
from otelctx.delta.sender import BaggageMode, Sender

__all__ = ["Link", "Links", "Origin"]

Origin = tuple[str, str, int]  # scheme, host, port


class Link:
    """One origin's :class:`Sender` and the lock that it needs. ``bytes`` is its memory when last looked at; ``kept``
    ends when the link is given up, for those who have a reference to it."""

    __slots__ = ("bytes", "kept", "lock", "sender")

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.lock = Lock()
        self.bytes = sender.bytes
        self.kept = True


class Links:
    """Links by origin, least recently used first out over ``limits.link_bytes``. Safe to use from any thread."""

    __slots__ = ("_baggage", "_bytes", "_limits", "_links", "_lock", "_w3c_only")

    def __init__(self, limits: Limits, baggage: BaggageMode, *, w3c_only: bool = False) -> None:
        self._limits = limits
        self._baggage: BaggageMode = baggage
        self._w3c_only = w3c_only
        self._bytes = 0
        self._lock = Lock()
        self._links: OrderedDict[Origin, Link] = OrderedDict()

    def __len__(self) -> int:
        return len(self._links)

    @property
    def bytes(self) -> int:
        return self._bytes

    def get(self, origin: Origin) -> Link:
        """The link to ``origin``, new if there was none."""
        with self._lock:
            link = self._links.get(origin)
            if link is not None:
                self._links.move_to_end(origin)
                return link
            link = self._links[origin] = Link(Sender(self._limits, baggage=self._baggage, w3c_only=self._w3c_only))
            self._bytes += link.bytes
            self._shrink()
            return link

    def weigh(self, origin: Origin, link: Link) -> None:
        """``link`` has been used: look at its memory again, for it may have learned something."""
        with self._lock:
            if link.kept:  # else it has been given up while its exchange was under way
                self._links.move_to_end(origin)
                now = link.sender.bytes
                self._bytes += now - link.bytes
                link.bytes = now
                self._shrink()

    def _shrink(self) -> None:
        while self._bytes > self._limits.link_bytes and len(self._links) > 1:
            _, link = self._links.popitem(last=False)
            link.kept = False
            link.sender.forget()
            self._bytes -= link.bytes
