"""One slab of int32 tokens in pages of 64, shared by all windows of a process. Ask, then act.

A page has a reference count: a window holds one reference, an open view another. A page that nobody refers to is
zeroed at once, so that a mistake elsewhere reads zeros and never another session's tokens.

One thread allocates. Any thread may release a page that only it refers to: the page is free for others after it has
been zeroed, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otelctx.errors import ArenaExhausted, ConfigError

__all__ = ["PAGE", "Arena", "Tokens", "pages_for"]

PAGE: Final = 64
Tokens = NDArray[np.int32]


def pages_for(tokens: int) -> int:
    """Pages that ``tokens`` tokens take."""
    return -(-tokens // PAGE)


class Arena:
    """``pages`` pages of 64 int32 tokens (256 bytes each), allocated as one array of shape [pages, 64]. Raises
    :class:`~otelctx.errors.ConfigError` if there is no memory for them."""

    __slots__ = ("_free", "_references", "_slab")

    def __init__(self, pages: int) -> None:
        if pages < 1:
            raise ValueError(f"an arena has at least one page, not {pages}")
        try:
            self._slab: Tokens = np.zeros((pages, PAGE), np.int32)
        except MemoryError:
            raise ConfigError(
                f"sessions: no memory for {pages} pages of {PAGE} tokens: choose a smaller window, or fewer pages"
            ) from None
        self._references = [0] * pages
        self._free = list(range(pages - 1, -1, -1))

    @property
    def pages(self) -> int:
        return len(self._references)

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def used_pages(self) -> int:
        return len(self._references) - len(self._free)

    def can_allocate(self, pages: int) -> bool:
        return pages <= len(self._free)

    def allocate(self, pages: int) -> list[int]:
        """``pages`` page numbers, each with one reference and all zeros; all of them or none.

        Raises :class:`~otelctx.errors.ArenaExhausted`.
        """
        if not self.can_allocate(pages):
            raise ArenaExhausted(
                f"{pages} pages of {PAGE} tokens wanted, {len(self._free)} of {self.pages} free; "
                "raise the arena's size or let idle sessions expire sooner"
            )
        taken = [self._free.pop() for _ in range(pages)]
        for page in taken:
            self._references[page] = 1
        return taken

    def retain(self, page: int) -> None:
        """One more reference to a page in use."""
        if self._references[page] < 1:
            raise ValueError(f"page {page} is free")
        self._references[page] += 1

    def release(self, page: int) -> None:
        """One reference less; the last one zeroes and frees the page."""
        if self._references[page] < 1:
            raise ValueError(f"page {page} is free already")
        self._references[page] -= 1
        if self._references[page] == 0:
            self._slab[page] = 0
            self._free.append(page)

    def copy(self, pages: Sequence[int]) -> Tokens:
        """The tokens of ``pages``, one page after the other: a copy, shape [64 · len(pages)]."""
        tokens: Tokens = self._slab.take(pages, axis=0).reshape(-1) if pages else np.empty(0, np.int32)
        return tokens

    def page(self, page: int) -> Tokens:
        """The page itself, shape [64], writable; only its window writes to it."""
        tokens: Tokens = self._slab[page]
        return tokens
