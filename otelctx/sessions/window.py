"""The token window of one session: a ring over pages of the arena, with transactions.

Positions are logical and only grow. Kept are the pinned prefix ``[0, pinned)``, which never leaves, and ``[head,
tail)``:

    0 ······ pinned ·· (evicted) ·· head ············ tail
    appended = tail      evicted = head − pinned      kept = pinned + tail − head      appended = kept + evicted, always

Everything is changed inside a transaction. Pages that leave the window in one stay untouched until it commits, and
what is appended lies behind the old tail, so that a rollback restores the tokens bit for bit. Starting a transaction
makes an older one stale, and so does :meth:`TokenWindow.void`.

No other holder of a page ever reads behind the window's committed tail in it. So a page may be appended to, or zeroed
behind the tail, while others hold it; what would break this rule goes to a new page instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from otelctx.errors import StaleView, TokenLimitExceeded, VersionConflict
from otelctx.sessions.arena import PAGE, Arena, Tokens, pages_for
from otelctx.sessions.snapshot import Counts, Snapshot, logical_pages
from otelctx.sessions.view import View

__all__ = ["TokenWindow", "Tx"]


@dataclass(frozen=True, slots=True)
class Tx:
    """One transaction: the epoch that must still be the window's, what to go back to, and ``fresh``, the pages of the
    arena that it has come by."""

    epoch: int
    version: int
    head: int
    tail: int
    pinned: int
    marks: tuple[int, ...]
    pages: dict[int, int]
    fresh: set[int]


class TokenWindow:
    """At most ``limit`` kept tokens. Not thread-safe: from lease to release one thread owns it.

    Only :meth:`void` may come from elsewhere. It touches no page: what a holder does in that moment ends well, and
    nothing that it does afterwards counts.
    """

    __slots__ = (
        "_arena",
        "_epoch",
        "_pages",
        "_released",
        "_tx",
        "head",
        "limit",
        "marks",
        "pinned",
        "tail",
        "version",
    )

    def __init__(self, arena: Arena, limit: int) -> None:
        self._arena = arena
        self._pages: dict[int, int] = {}  # logical page → page of the arena
        self._epoch = 0
        self._tx: Tx | None = None
        self._released = False
        self.limit = limit
        self.head = 0
        self.tail = 0
        self.pinned = 0
        self.marks: tuple[int, ...] = ()  # where each kept exchange starts, oldest first
        self.version = 0

    # what there is

    @property
    def arena(self) -> Arena:
        return self._arena

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
        """Tokens of each kept exchange, oldest first: their sum is ``kept − pinned``. What was appended before the
        first mark counts as one exchange."""
        return [end - start for start, end in pairwise((*self._starts(), self.tail))]

    def tokens(self) -> Tokens:
        """A copy of the kept tokens: int32, shape [kept]. Raises :class:`~otelctx.errors.StaleView` once the window is
        released."""
        self._check_released()
        return np.concatenate((self._copy(0, self.pinned), self._copy(self.head, self.tail)))

    def view(self) -> View:
        """Slices of the kept tokens without a copy: ``with window.view() as view: for part in view: …``. Their pages
        are not reused before the block ends. Raises :class:`~otelctx.errors.StaleView` once the window is released."""
        return View(self._arena, self._kept_slices)

    @property
    def committed(self) -> Counts:
        """What the last commit left. From any thread, also while a transaction is open."""
        version, head, tail, pinned = self._committed()
        return Counts(version, pinned + tail - head, head - pinned)

    @property
    def occupancy(self) -> tuple[int, int]:
        """How many tokens the last commit left, and how many the pages that hold them could. From any thread."""
        _, head, tail, pinned = self._committed()
        return pinned + tail - head, PAGE * len(logical_pages(pinned, head, tail))

    def _committed(self) -> tuple[int, int, int, int]:
        """Version, head, tail and pinned. An open transaction knows what was before it; without one, what was read
        counts if none has begun meanwhile."""
        while True:
            epoch, tx = self._epoch, self._tx
            at = self if tx is None else tx
            found = (at.version, at.head, at.tail, at.pinned)
            if tx is not None or (self._epoch == epoch and self._tx is None):
                return found

    def snapshot(self) -> Snapshot:
        """What the last commit left, with references to its pages: to be released. Raises
        :class:`~otelctx.errors.StaleView` once the window is released."""
        self._check_released()
        at, table = (self, self._pages) if self._tx is None else (self._tx, self._tx.pages)
        pages = [table[n] for n in logical_pages(at.pinned, at.head, at.tail)]
        for page in pages:
            self._arena.retain(page)
        return Snapshot(at.version, at.head, at.tail, at.pinned, at.marks, np.asarray(pages, np.int32))

    # transactions

    def begin(self) -> Tx:
        """Start a transaction; one that is still open is rolled back first."""
        if self._released:
            raise VersionConflict("this window was released: its session has ended")
        if self._tx is not None:
            self.rollback(self._tx)
        tx = Tx(self._epoch + 1, self.version, self.head, self.tail, self.pinned, self.marks, self._pages.copy(), set())
        self._tx, self._epoch = tx, tx.epoch  # in this order: see committed
        return tx

    def append(self, tx: Tx, ids: Sequence[int] | Tokens) -> None:
        """Append tokens: ids that fit into int32, or an int32 array of shape [n].

        Raises :class:`~otelctx.errors.TokenLimitExceeded` over the limit and
        :class:`~otelctx.errors.ArenaExhausted` without pages; the window is then as before the call.
        """
        self._check(tx)
        tokens = _int32(ids)
        self._check_room(self.kept, len(tokens))
        self._allocate(tx, range(pages_for(self.tail), pages_for(self.tail + len(tokens))))
        self._write(self.tail, tokens)
        self.tail += len(tokens)

    def pin(self, tx: Tx, n: int) -> None:
        """Pin the first ``n`` tokens for good. Once, before any eviction or exchange."""
        self._check(tx)
        if self.pinned or self.head or self.marks or not 0 <= n <= self.tail:
            raise ValueError("a window is pinned once, over tokens it has, before its first exchange")
        self.pinned = self.head = n

    def mark_turn(self, tx: Tx) -> None:
        """An exchange starts at the tail. An exchange that has no tokens yet is not started twice."""
        self._check(tx)
        if self.tail not in self.marks[-1:]:
            self.marks = (*self.marks, self.tail)

    def evict_turns(self, tx: Tx, count: int) -> int:
        """Evict the ``count`` oldest of :attr:`turns` whole. Returns the number of tokens."""
        self._check(tx)
        starts = self._starts()
        if not 0 <= count <= len(starts):
            raise ValueError(f"{count} exchanges of {len(starts)}")
        if count == 0:
            return 0
        rest = starts[count:]
        tokens = self._evict_to(tx, rest[0] if rest else self.tail)
        self.marks = rest
        return tokens

    def evict_tokens(self, tx: Tx, n: int) -> int:
        """Evict the ``n`` oldest tokens behind the pinned ones, or all there are, in the middle of exchanges too.

        An exchange that is cut starts at the head afterwards, one that is gone is no exchange any more. Returns the
        number of tokens.
        """
        self._check(tx)
        if n < 0:
            raise ValueError(f"{n} tokens can't be evicted")
        target = min(self.head + n, self.tail)
        later = bisect_right(self.marks, target)
        cut = self.marks[later - 1 : later] if later else ()
        if cut and cut[0] != target:
            cut = (target,) if target < self.tail else ()
        self.marks = (*cut, *self.marks[later:])
        return self._evict_to(tx, target)

    def replace(self, tx: Tx, ids: Sequence[int] | Tokens, *, evicted: int = 0, pinned: int = 0) -> None:
        """All kept tokens become ``ids``, the first ``pinned`` of them pinned, without exchanges.

        ``evicted`` more tokens count as evicted; ``appended`` follows from both. Pages at the beginning that would hold
        the same as now are kept. Raises what :meth:`append` raises, ``ValueError`` for a number that can't be; the
        window is then as before the call.
        """
        self._check(tx)
        tokens = _int32(ids)
        if not 0 <= pinned <= len(tokens) or evicted < 0:
            raise ValueError(f"{pinned} of {len(tokens)} tokens can't be pinned, or {evicted} be evicted")
        self._check_room(0, len(tokens))
        gone = self.evicted + evicted
        same = self._same(tokens, gone, pinned) // PAGE
        head, tail = pinned + gone, len(tokens) + gone
        wanted = logical_pages(pinned, head, tail)
        old = self._pages
        self._pages = {n: old[n] for n in wanted if n < same}
        try:
            self._allocate(tx, [n for n in wanted if n >= same])
        except BaseException:
            self._pages = old
            raise
        self._drop(tx, (page for n, page in old.items() if n not in self._pages or n >= same))
        self._write(0, tokens[:pinned], same * PAGE)
        self._write(head, tokens[pinned:], same * PAGE)
        self.head, self.tail, self.pinned, self.marks = head, tail, pinned, ()

    def restore(self, tx: Tx, snapshot: Snapshot) -> None:
        """The kept tokens become those of ``snapshot``, a snapshot of this window. Raises
        :class:`~otelctx.errors.ArenaExhausted`; the window is then as before the call.
        """
        self._check(tx)
        pages = dict(zip(snapshot.logical, snapshot.pages.tolist(), strict=True))
        used = snapshot.tail % PAGE
        copied = pages.get(snapshot.tail // PAGE) if used else None
        if copied is not None:
            # The window is to go on in the middle of this page, where later versions have tokens of theirs.
            (page,) = self._arena.allocate(1)
            self._arena.page(page)[:used] = self._arena.page(copied)[:used]
            pages[snapshot.tail // PAGE] = page
            tx.fresh.add(page)
        owned = tx.fresh | set(tx.pages.values())
        for page in pages.values():
            if page not in owned:
                self._arena.retain(page)
                tx.fresh.add(page)
        stay = set(pages.values())
        self._drop(tx, (page for page in self._pages.values() if page not in stay))
        self._pages = pages
        self.head, self.tail, self.pinned, self.marks = snapshot.head, snapshot.tail, snapshot.pinned, snapshot.marks

    def commit(self, tx: Tx) -> int:
        """Make it last; returns the new version. Raises :class:`~otelctx.errors.VersionConflict` for a stale epoch."""
        self._check(tx)
        stay = set(self._pages.values())
        self._let_go(page for page in tx.pages.values() if page not in stay)
        self.version += 1
        self._tx = None
        return self.version

    def rollback(self, tx: Tx) -> None:
        """Back to how it was, bit for bit. A transaction that is over already is left alone."""
        if self._tx is not tx:
            return
        self._let_go(tx.fresh)
        self._pages = tx.pages
        if tx.tail % PAGE:
            self._arena.page(self._pages[tx.tail // PAGE])[tx.tail % PAGE :] = 0
        self.head, self.tail, self.pinned, self.marks = tx.head, tx.tail, tx.pinned, tx.marks
        self._tx = None

    def void(self) -> None:
        """Make an open transaction stale: it can only be rolled back, by its holder or by the next :meth:`begin`."""
        self._epoch += 1

    def release(self) -> None:
        """The end: give all pages back. The window is empty and can't be used again."""
        tx = self._tx
        owned = set(self._pages.values()) if tx is None else tx.fresh | set(tx.pages.values())
        self._let_go(owned)
        self._pages = {}
        self._released = True
        self._tx = None
        self._epoch += 1
        self.head = self.tail = self.pinned = 0
        self.marks = ()

    def _kept_slices(self) -> tuple[list[int], list[Tokens]]:
        self._check_released()
        return list(self._pages.values()), [*self._slices(0, self.pinned), *self._slices(self.head, self.tail)]

    def _starts(self) -> tuple[int, ...]:
        unmarked = self.tail > self.head and self.head not in self.marks[:1]
        return (self.head, *self.marks) if unmarked else self.marks

    def _same(self, tokens: Tokens, gone: int, pinned: int) -> int:
        """The position up to which the window holds what it would with ``tokens``."""
        now = self.tokens()
        least = min(len(now), len(tokens))
        differs = np.flatnonzero(now[:least] != tokens[:least])
        common = int(differs[0]) if len(differs) else least
        if gone != self.evicted or (gone and pinned != self.pinned):
            return min(common, pinned, self.pinned)
        return common if common < pinned else common + gone

    def _evict_to(self, tx: Tx, target: int) -> int:
        tokens = target - self.head
        pinned_pages = pages_for(self.pinned)
        gone = range(max(self.head // PAGE, pinned_pages), target // PAGE)
        self._drop(tx, (self._pages.pop(n) for n in gone))
        self.head = target
        return tokens

    def _check_room(self, kept: int, new: int) -> None:
        if kept + new > self.limit:
            raise TokenLimitExceeded(
                f"{kept} tokens kept and {new} new exceed this window's maximum context length of {self.limit} tokens",
                max_context=self.limit,
            )

    def _allocate(self, tx: Tx, logical: Sequence[int]) -> None:
        if logical:
            pages = self._arena.allocate(len(logical))
            self._pages.update(zip(logical, pages, strict=True))
            tx.fresh.update(pages)

    def _write(self, start: int, tokens: Tokens, skip: int = 0) -> None:
        """Put ``tokens`` at the positions from ``start`` on, but none before ``skip``."""
        done = min(max(skip - start, 0), len(tokens))
        while done < len(tokens):
            at = (start + done) % PAGE
            n = min(PAGE - at, len(tokens) - done)
            self._arena.page(self._pages[(start + done) // PAGE])[at : at + n] = tokens[done : done + n]
            done += n

    def _drop(self, tx: Tx, pages: Iterable[int]) -> None:
        """These have left the window. What came with the transaction goes at once: a rollback has no use for it, and
        an answer without an end must not use up the arena."""
        for page in pages:
            if page in tx.fresh:
                tx.fresh.remove(page)
                self._arena.release(page)

    def _let_go(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._arena.release(page)

    def _check_released(self) -> None:
        if self._released:
            raise StaleView("this window was released; its tokens are gone")

    def _check(self, tx: Tx) -> None:
        if self._tx is not tx or tx.epoch != self._epoch:
            raise VersionConflict("this transaction is over: the window has moved on since it began")

    def _copy(self, start: int, end: int) -> Tokens:
        pages = [self._pages[n] for n in range(start // PAGE, pages_for(end))]
        return self._arena.copy(pages)[start % PAGE :][: end - start]

    def _slices(self, start: int, end: int) -> Iterator[Tokens]:
        while start < end:
            at = start % PAGE
            n = min(PAGE - at, end - start)
            part = self._arena.page(self._pages[start // PAGE])[at : at + n]
            part.flags.writeable = False
            yield part
            start += n


def _int32(ids: Sequence[int] | Tokens) -> Tokens:
    # An array of wider integers would be cut to 32 bits without a word, a list of them would not.
    if isinstance(ids, np.ndarray):
        return ids.astype(np.int32, casting="safe", copy=False)
    return np.asarray(ids, np.int32)
