"""Frames and acks as values. Callers never see protobuf classes; :mod:`otelctx.delta.codec` converts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Protocol

from otelctx.context.state import Entry, State, Window
from otelctx.delta.limits import BASE_BYTES
from otelctx.semconv import TABLE_REVISION

__all__ = ["Ack", "AckKind", "Basis", "Frame", "FrameKind", "Held", "NackReason", "delta", "full", "ref"]


class FrameKind(IntEnum):
    """FULL carries the state, DELTA what changed against a base, REF only the root."""

    FULL = 1
    DELTA = 2
    REF = 3


class AckKind(IntEnum):
    ACK = 0
    NACK = 1


class Held(IntEnum):
    """Where the receiver keeps the state as a base: nowhere, in this process, or where every worker finds it."""

    NONE = 0
    PROCESS = 1
    SHARED = 2


class NackReason(IntEnum):
    NONE = 0
    UNKNOWN_BASE = 1
    ROOT = 2
    LIMIT = 3
    TABLE = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """``root`` is 16 bytes; ``base`` the first 8 bytes of the base's root (DELTA only); ``put`` sorted by name."""

    kind: FrameKind
    root: bytes
    base: bytes = b""
    put: tuple[Entry, ...] = ()
    delete: tuple[str, ...] = ()
    table: int = TABLE_REVISION


@dataclass(frozen=True, slots=True)
class Ack:
    """Answer to one frame. ``root`` is the first 8 bytes of the frame's root; ``boot_id`` 32 bits, ``event`` 64 bits.

    ``ups`` are the up values, sums as increments; ``final`` says that nothing more will come for this request;
    ``truncated`` that up values were left out for size.
    """

    kind: AckKind
    root: bytes
    held: Held = Held.NONE
    boot_id: int = 0
    reason: NackReason = NackReason.NONE
    table: int = TABLE_REVISION
    final: bool = False
    event: int = 0
    ups: tuple[Entry, ...] = ()
    window: Window | None = None
    moved: str = ""
    truncated: bool = False


def full(state: State, table: int = TABLE_REVISION) -> Frame:
    """The frame that stands alone."""
    return Frame(FrameKind.FULL, state.root, put=tuple(state.entries()), table=table)


def ref(state: State, table: int = TABLE_REVISION) -> Frame:
    """The frame for a receiver that holds exactly this state."""
    return _ref(state.root, table)


@lru_cache(maxsize=4096)
def _ref(root: bytes, table: int) -> Frame:
    return Frame(FrameKind.REF, root, table=table)


class Basis(Protocol):
    """What a DELTA needs to know of its base."""

    @property
    def root(self) -> bytes: ...

    def diff(self, target: State, /) -> tuple[list[Entry], list[str]]: ...


def delta(base: Basis, state: State, table: int = TABLE_REVISION) -> Frame:
    """The frame for a receiver that holds ``base``."""
    put, delete = base.diff(state)
    return Frame(FrameKind.DELTA, state.root, base.root[:BASE_BYTES], tuple(put), tuple(delete), table)


def size(entries: Sequence[Entry]) -> int:
    """Bytes that ``entries`` take in a frame."""
    return sum(e.size for e in entries)
