"""Which earlier versions of a session are kept, found and given up. Pure.

Each commit is a version. Kept are the last few, every hundredth, and those that have a label; under pressure for memory
any of them may go, those with a label last. A version that is gone is answered by the nearest before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from otelctx.errors import ConfigError
from otelctx.sessions.snapshot import Snapshot

__all__ = ["MAX_LABELS", "RETENTION", "Retention", "Version", "key_of", "nearest", "surplus", "victim"]

MAX_LABELS: Final = 32


@dataclass(frozen=True, slots=True)
class Retention:
    """Kept are the ``last`` versions, the current one among them, and the newest ``milestones`` of every ``every``-th:
    without that bound a session of a million turns would keep ten thousand."""

    last: int = 16
    every: int = 100
    milestones: int = 32

    def __post_init__(self) -> None:
        if self.last < 1 or self.every < 1 or self.milestones < 0:
            raise ConfigError(f"versions: last and every must be at least 1, milestones at least 0, not {self}")


RETENTION: Final = Retention()


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """An earlier version of a session: its window, and what was kept beside it (see
    :class:`~otelctx.sessions.record.SessionRecord`)."""

    window: Snapshot
    turns: int
    pending: tuple[int, ...]
    system: str | None
    messages: tuple[tuple[str, str], ...]

    @property
    def number(self) -> int:
        return self.window.version


def key_of(system: str | None, number: int) -> str:
    """``prompt:<sha256>@v<version>``: the version, and which system prompt it is of (SHA-256 of its UTF-8 in hex; of
    nothing, if the session has none of its own)."""
    return f"prompt:{sha256((system or '').encode('utf-8', 'surrogatepass')).hexdigest()}@v{number}"


def surplus(kept: Sequence[int], current: int, labelled: Collection[int], retention: Retention) -> set[int]:
    """Of the version numbers ``kept`` (ascending, all below ``current``), those that need not be kept any longer."""
    milestones = [number for number in kept if number % retention.every == 0]
    stay = {*labelled, *milestones[max(0, len(milestones) - retention.milestones) :]}
    return {number for number in kept if number <= current - retention.last and number not in stay}


def nearest(kept: Sequence[Version], target: int) -> Version | None:
    """Of versions in ascending order, the newest that is not newer than ``target``."""
    return next((version for version in reversed(kept) if version.number <= target), None)


def victim(kept: Sequence[int], labelled: Collection[int]) -> int | None:
    """The version to give up first: the oldest without a label, else the oldest."""
    return next((number for number in kept if number not in labelled), next(iter(kept), None))
