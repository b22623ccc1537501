"""Reading a window's tokens where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from otelctx.errors import StaleView
from otelctx.sessions.arena import Arena, Tokens

__all__ = ["View"]


class View:
    """Zero-copy slices of a window's kept tokens, good inside its ``with`` block only."""

    __slots__ = ("_arena", "_kept", "_pages", "_parts")

    def __init__(self, arena: Arena, kept: Callable[[], tuple[list[int], list[Tokens]]]) -> None:
        """``kept`` gives the window's pages of ``arena``, and the slices of them that hold its tokens."""
        self._arena = arena
        self._kept = kept
        self._pages: list[int] = []
        self._parts: list[Tokens] | None = None

    def __enter__(self) -> View:
        self._pages, self._parts = self._kept()
        for page in self._pages:
            self._arena.retain(page)
        return self

    def __exit__(self, *_: object) -> None:
        self._parts = None
        for page in self._pages:
            self._arena.release(page)

    def __iter__(self) -> Iterator[Tokens]:
        """Read-only int32 slices in order; copy what is to outlive the block. Raises
        :class:`~otelctx.errors.StaleView` after the block, also in the middle of an iteration."""
        for index in range(len(self._open())):
            yield self._open()[index]

    def __len__(self) -> int:
        """Number of tokens."""
        return sum(len(part) for part in self._open())

    def _open(self) -> list[Tokens]:
        if self._parts is None:
            raise StaleView("used outside of its block, where a view's pages may hold another session's tokens")
        return self._parts
