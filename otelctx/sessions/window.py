"""The token window of one session: a ring over pages of the arena, with transactions.

Positions are logical and only grow. Kept are the pinned prefix ``[0, pinned)``, which never leaves, and ``[head,
tail)``:

    0 ······ pinned ·· (evicted) ·· head ············ tail
    appended = tail      evicted = head − pinned      kept = pinned + tail − head      appended = kept + evicted, always

Everything is changed inside a transaction. Pages that are evicted in one stay untouched until it commits, and what is
appended lies behind the old tail, so that a rollback restores the tokens bit for bit. Starting a transaction makes an
older one stale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from otelctx.errors import ArenaExhausted, StaleView, TokenLimitExceeded, VersionConflict
from otelctx.sessions.arena import PAGE, Arena, Tokens, pages_for

__all__ = ["TokenWindow", "Tx", "View"]


@dataclass(frozen=True, slots=True)
class Tx:
    """One transaction: the epoch that must still be the window's, and what to go back to."""

    epoch: int
    head: int
    tail: int
    pinned: int
    marks: tuple[int, ...]


class View:
    """Zero-copy slices of a window's kept tokens, good until its ``with`` block ends."""

    __slots__ = ("_open", "_parts")

    def __init__(self, parts: list[Tokens]) -> None:
        self._parts = parts
        self._open = True

    def __iter__(self) -> Iterator[Tokens]:
        """Read-only int32 slices in order. Raises :class:`~otelctx.errors.StaleView` after the block."""
        if not self._open:
            raise StaleView("this view's block has ended; its pages may hold another session's tokens by now")
        return iter(self._parts)

    def __len__(self) -> int:
        return sum(len(part) for part in self)

    def close(self) -> None:
        self._open = False
        self._parts = []


class TokenWindow:
    """At most ``limit`` kept tokens. Not thread-safe: from lease to release one thread owns it."""

    __slots__ = ("_arena", "_epoch", "_held", "_pages", "_tx", "head", "limit", "marks", "pinned", "tail", "version")

    def __init__(self, arena: Arena, limit: int) -> None:
        self._arena = arena
        self._pages: dict[int, int] = {}  # logical page → page of the arena
        self._held: list[int] = []  # evicted in the open transaction
        self._epoch = 0
        self._tx: Tx | None = None
        self.limit = limit
        self.head = 0
        self.tail = 0
        self.pinned = 0
        self.marks: tuple[int, ...] = ()  # where each kept exchange starts, oldest first
        self.version = 0

    # what there is

    @property
    def appended(self) -> int:
        return self.tail

    @property
    def evicted(self) -> int:
        return self.head - self.pinned

    @property
    def kept(self) -> int:
        return self.pinned + self.tail - self.head

    @property
    def turns(self) -> list[int]:
        """Tokens of each kept exchange, oldest first."""
        ends = (*self.marks[1:], self.tail)
        return [end - start for start, end in zip(self.marks, ends, strict=True)] if self.marks else []

    def tokens(self) -> Tokens:
        """A copy of the kept tokens: int32, shape [kept]."""
        with self.view() as view:
            parts = list(view)
            return np.concatenate(parts) if parts else np.empty(0, np.int32)

    @contextmanager
    def view(self) -> Iterator[View]:
        """Slices of the kept tokens without a copy. Their pages are not reused before the block ends."""
        pages = list(self._pages.values())
        for page in pages:
            self._arena.retain(page)
        view = View([*self._slices(0, self.pinned), *self._slices(self.head, self.tail)])
        try:
            yield view
        finally:
            view.close()
            for page in pages:
                self._arena.release(page)

    # transactions

    def begin(self) -> Tx:
        """Start a transaction; one that is still open is rolled back first."""
        if self._tx is not None:
            self.rollback(self._tx)
        self._epoch += 1
        self._tx = Tx(self._epoch, self.head, self.tail, self.pinned, self.marks)
        return self._tx

    def append(self, tx: Tx, ids: Sequence[int] | Tokens) -> None:
        """Append tokens. Raises :class:`~otelctx.errors.TokenLimitExceeded` over the limit and
        :class:`~otelctx.errors.ArenaExhausted` without pages; the window is then as before the call."""
        self._check(tx)
        tokens = np.asarray(ids, np.int32)
        if self.kept + len(tokens) > self.limit:
            raise TokenLimitExceeded(
                f"{self.kept} tokens kept and {len(tokens)} new exceed this window's maximum context length "
                f"of {self.limit} tokens",
                max_context=self.limit,
            )
        wanted = range(pages_for(self.tail), pages_for(self.tail + len(tokens)))
        if not self._arena.can_allocate(len(wanted)):
            raise ArenaExhausted(f"{len(wanted)} more pages wanted, {self._arena.free_pages} free")
        self._pages.update(zip(wanted, self._arena.allocate(len(wanted)), strict=True))
        done = 0
        while done < len(tokens):
            at = (self.tail + done) % PAGE
            n = min(PAGE - at, len(tokens) - done)
            self._arena.page(self._pages[(self.tail + done) // PAGE])[at : at + n] = tokens[done : done + n]
            done += n
        self.tail += len(tokens)

    def pin(self, tx: Tx, n: int) -> None:
        """Pin the first ``n`` tokens for good. Once, before any eviction or exchange."""
        self._check(tx)
        if self.pinned or self.head or self.marks or n > self.tail:
            raise ValueError("a window is pinned once, over tokens it has, before its first exchange")
        self.pinned = self.head = n

    def mark_turn(self, tx: Tx) -> None:
        """An exchange starts at the tail."""
        self._check(tx)
        self.marks = (*self.marks, self.tail)

    def evict_turns(self, tx: Tx, count: int) -> int:
        """Evict the ``count`` oldest exchanges whole. Returns the number of tokens."""
        self._check(tx)
        if not 0 <= count <= len(self.marks):
            raise ValueError(f"{count} exchanges of {len(self.marks)}")
        rest = self.marks[count:]
        target = rest[0] if rest else self.tail
        tokens = target - self.head
        pinned_pages = pages_for(self.pinned)
        for logical in range(max(self.head // PAGE, pinned_pages), target // PAGE):
            self._held.append(self._pages.pop(logical))
        self.head, self.marks = target, rest
        return tokens

    def commit(self, tx: Tx) -> int:
        """Make it last; returns the new version. Raises :class:`~otelctx.errors.VersionConflict` for a stale epoch."""
        self._check(tx)
        for page in self._held:
            self._arena.release(page)
        self._held.clear()
        self._tx = None
        self.version += 1
        return self.version

    def rollback(self, tx: Tx) -> None:
        """Back to how it was, bit for bit. A transaction that is over already is left alone."""
        if self._tx is not tx:
            return
        first_held = max(tx.head // PAGE, pages_for(tx.pinned))
        self._pages.update(enumerate(self._held, first_held))
        self._held.clear()
        for logical in range(pages_for(tx.tail), pages_for(self.tail)):
            self._arena.release(self._pages.pop(logical))
        if tx.tail % PAGE:
            self._arena.page(self._pages[tx.tail // PAGE])[tx.tail % PAGE :] = 0
        self.head, self.tail, self.pinned, self.marks = tx.head, tx.tail, tx.pinned, tx.marks
        self._tx = None

    def release(self) -> None:
        """Give all pages back; the window is empty afterwards and any open transaction is void."""
        for page in (*self._pages.values(), *self._held):
            self._arena.release(page)
        self._pages.clear()
        self._held.clear()
        self._tx = None
        self._epoch += 1
        self.head = self.tail = self.pinned = 0
        self.marks = ()

    def _check(self, tx: Tx) -> None:
        if self._tx is not tx or tx.epoch != self._epoch:
            raise VersionConflict("this transaction is over: the window has moved on since it began")

    def _slices(self, start: int, end: int) -> Iterator[Tokens]:
        while start < end:
            at = start % PAGE
            n = min(PAGE - at, end - start)
            part = self._arena.page(self._pages[start // PAGE])[at : at + n]
            part.flags.writeable = False
            yield part
            start += n
