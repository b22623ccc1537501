"""What is kept of a session beside its window, and its versions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from otelctx.errors import InvalidRequest, VersionNotFound
from otelctx.sessions.arena import Arena
from otelctx.sessions.versions import MAX_LABELS, RETENTION, Retention, Version, key_of, nearest, surplus, victim
from otelctx.sessions.window import TokenWindow, Tx

__all__ = ["Ended", "SessionRecord", "reclaim"]

Ended = Literal["idle", "capacity", "deleted", "unused"]


@dataclass(slots=True, eq=False)
class SessionRecord:
    """One conversation.

    ``owner`` is recorded at creation and checked at each use. ``created`` and ``used`` are monotonic seconds;
    ``generation`` orders sessions that had the same id one after the other. ``pending`` are token ids that are
    committed but not in the KV yet: they are fed first in the next turn. ``row`` is where its KV was last, a hint.
    ``system`` is the text of the pinned head, so that another system prompt in a later turn can be told. Usage totals
    are tokens over all turns, those that a rollback took out of the conversation too. ``leases`` counts the turn that
    runs and those that wait for it to end; while it is not 0, the session stays. ``ended`` says why a session that left
    the store did so. ``messages`` are the conversation as (role, text), where the chat template depends on all of it,
    so that each turn renders it anew; else there are none.

    ``kept`` are earlier versions, oldest first; the current one is the record itself. ``labels`` are names of versions,
    these or the current. Both are replaced and never changed, so that any thread may look at them; who changes them
    holds the session's lease, or nobody does. ``elder`` and ``younger`` are its neighbours among its owner's sessions.
    """

    session_id: str
    owner: str
    window: TokenWindow
    created: float
    used: float
    generation: int = 1
    turns: int = 0
    pending: tuple[int, ...] = ()
    row: int | None = None
    system: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    leases: int = 0
    ended: Ended | None = None
    messages: tuple[tuple[str, str], ...] = ()
    kept: tuple[Version, ...] = ()
    labels: tuple[tuple[str, int], ...] = ()
    retention: Retention = RETENTION
    elder: SessionRecord | None = None
    younger: SessionRecord | None = None

    def commit(self, tx: Tx) -> int:
        """Make ``tx`` last, and keep what was before it as a version. Returns the new version's number.

        To be called before anything else of the record is changed. Raises
        :class:`~otelctx.errors.VersionConflict` for a stale transaction; the record is then as before.
        """
        window = self.window
        if window.version == 0:
            return window.commit(tx)
        before = Version(window.snapshot(), self.turns, self.pending, self.system, self.messages)
        try:
            number = window.commit(tx)
        except BaseException:
            before.window.release(window.arena)
            raise
        self.kept = (*self.kept, before)
        self.prune()
        return number

    def restore(self, number: int) -> int:
        """Make the newest version that is not newer than ``number`` the current one again: as a new version, so that
        nothing is lost by it. Returns the number of the version restored.

        Raises :class:`~otelctx.errors.VersionNotFound` and :class:`~otelctx.errors.ArenaExhausted`; the conversation is
        then as before.
        """
        found = self.find(number)
        window = self.window
        tx = window.begin()
        try:
            if found is not None:
                # The page that it goes on in is copied. Its own snapshot is needed for that, others are not.
                while not window.arena.can_allocate(1) and self._give_up(found):
                    pass
                window.restore(tx, found.window)
            restored = window.version if found is None else found.number
            self.commit(tx)
        except BaseException:
            window.rollback(tx)
            raise
        if found is not None:
            self.turns, self.pending, self.system, self.messages = (
                found.turns,
                found.pending,
                found.system,
                found.messages,
            )
        return restored

    def find(self, number: int) -> Version | None:
        """The newest version kept that is not newer than ``number``; ``None`` is the current one. Raises
        :class:`~otelctx.errors.VersionNotFound` for one that has not been yet, or is gone with all before it."""
        current = self.window.committed.version
        if not 0 < number <= current:
            raise VersionNotFound(f"there is no version {number}: the newest is {current}", param="version")
        if number == current:
            return None
        found = nearest(self.kept, number)
        if found is None:
            oldest = self.kept[0].number if self.kept else current
            raise VersionNotFound(f"version {number} is not kept any longer: the oldest is {oldest}", param="version")
        return found

    def labelled(self, label: str) -> int:
        """The version that ``label`` names: a label, or a key as :func:`~otelctx.sessions.versions.key_of` makes it.
        Raises :class:`~otelctx.errors.VersionNotFound`."""
        for name, number in self.labels:
            if name == label:
                return number
        current = self.window.committed.version
        keys = {key_of(version.system, version.number): version.number for version in self.kept}
        keys[key_of(self.system, current)] = current
        if label not in keys:
            raise VersionNotFound(f"this session has no label {label!r}", code="label_not_found", param="label")
        return keys[label]

    def label(self, name: str, number: int | None = None) -> int:
        """Name exactly version ``number`` (the current one, if ``None``), which stays while it has the label; a label
        that there is moves. Returns the version's number.

        Raises :class:`~otelctx.errors.VersionNotFound`, :class:`~otelctx.errors.InvalidRequest` over 32 labels.
        """
        current = self.window.committed.version
        number = current if number is None else number
        found = self.find(number)
        if found is not None and found.number != number:
            raise VersionNotFound(
                f"version {number} is not kept any longer: the nearest before it is {found.number}", param="version"
            )
        others = tuple((label, at) for label, at in self.labels if label != name)
        if len(others) >= MAX_LABELS:
            raise InvalidRequest(
                f"a session has at most {MAX_LABELS} labels: remove one first", code="too_many_labels", param="label"
            )
        self.labels = (*others, (name, number))
        self.prune()
        return number

    def unlabel(self, name: str) -> None:
        """Raises :class:`~otelctx.errors.VersionNotFound`."""
        left = tuple((label, at) for label, at in self.labels if label != name)
        if len(left) == len(self.labels):
            raise VersionNotFound(f"this session has no label {name!r}", code="label_not_found", param="label")
        self.labels = left
        self.prune()

    def prune(self) -> None:
        """Give up the versions that need not be kept."""
        labelled = {number for _, number in self.labels}
        self._forget(surplus([v.number for v in self.kept], self.window.version, labelled, self.retention))

    def give_up_version(self) -> bool:
        """Under pressure for memory: forget the version that is missed least, with its labels. ``False``: there is
        none."""
        return self._give_up(None)

    def release(self) -> None:
        """The end: all pages go back to the arena."""
        self.labels = ()
        self._forget({version.number for version in self.kept})
        self.window.release()

    def _give_up(self, spared: Version | None) -> bool:
        labelled = {number for _, number in self.labels}
        number = victim([v.number for v in self.kept if v is not spared], labelled)
        if number is None:
            return False
        self.labels = tuple((label, at) for label, at in self.labels if at != number)
        self._forget({number})
        return True

    def _forget(self, numbers: set[int]) -> None:
        if numbers:
            gone = [version for version in self.kept if version.number in numbers]
            self.kept = tuple(version for version in self.kept if version.number not in numbers)
            for version in gone:
                version.window.release(self.window.arena)


def reclaim(records: Iterable[SessionRecord], arena: Arena, pages: int) -> None:
    """Give up versions of ``records``, one record after the other, until ``pages`` pages are free or none is left."""
    for record in records:
        while not arena.can_allocate(pages):
            if not record.give_up_version():
                break
