"""A bounded ring of recent events, for people who look into a running process and for tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["FEED", "Feed", "Item"]


@dataclass(frozen=True, slots=True)
class Item:
    """One event. ``time`` is Unix time in nanoseconds; ids are lower-case hex, empty outside a trace."""

    time: int
    name: str
    attributes: Mapping[str, object]
    trace_id: str = ""
    span_id: str = ""


class Feed:
    """Keeps the newest ``size`` items. Any thread may add; a reader gets a copy."""

    __slots__ = ("_items",)

    def __init__(self, size: int = 256) -> None:
        self._items: deque[Item] = deque(maxlen=size)

    def add(self, item: Item) -> None:
        self._items.append(item)

    def recent(self, limit: int | None = None) -> list[Item]:
        """The newest ``limit`` items (all, if ``None``), oldest first."""
        items = list(self._items)
        return items if limit is None else items[max(0, len(items) - limit) :]

    def clear(self) -> None:
        self._items.clear()

    def __len__(self) -> int:
        return len(self._items)


FEED: Final = Feed()
