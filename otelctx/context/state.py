"""The carried state: an immutable map of typed entries with a 16-byte root, and the window report. Pure.

    leaf = SHA-256(u16 len ‖ name ‖ type byte ‖ u16 len ‖ value)[:16]
    root = SHA-256(leaves in byte order of their names)[:16];   the empty state's root is 16 zero bytes

A sum of hashes would be forgeable, and serialised protobuf is not canonical; hence leaves of our own. Compare leaves,
never Python values: ``1 == True == 1.0``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

from otelctx.context.keys import Kind, Value, kind_of
from otelctx.errors import ContextLimitExceeded
from otelctx.semconv import INCOMPLETE, SESSION_ID, STATIC_TABLE, TABLE_SINCE

__all__ = ["EMPTY", "MAX_ENTRIES", "MAX_FULL_BYTES", "Entry", "State", "Window", "entry"]

MAX_ENTRIES: Final = 64
# Bytes of a FULL frame before base64: its header value stays under 4096 characters, which every proxy default passes.
MAX_FULL_BYTES: Final = 2900
MAC_BYTES: Final = 19

_EMPTY_ROOT: Final = bytes(16)
# Later keys are counted by their names: to a receiver of the first revision they go so.
_IDS: Final = frozenset(name for key_id, name in STATIC_TABLE.items() if TABLE_SINCE.get(key_id, 1) == 1)
# kind (2) + root (18) + table revision (2): the fixed fields of a FULL frame, each with a one-byte tag.
_FULL_FIXED: Final = 2 + 18 + 2
# The completeness entry must always still fit: entry tag and length (2) + id (2) + bool (2).
_RESERVED: Final = 6


def encode_value(value: Value) -> bytes:
    """Canonical bytes of a value, as they go into a leaf: numbers big-endian, text as raw UTF-8."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):  # before int, of which it is a subclass
        return b"\x01" if value else b"\x00"
    if isinstance(value, int):
        return value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return struct.pack(">d", value)
    return value


def _varint(n: int) -> int:
    return 1 if n < 128 else (n.bit_length() + 6) // 7


class Entry(NamedTuple):
    """One entry, its cached leaf (16 bytes) and the bytes it takes in a frame. Build it with :func:`entry`."""

    name: str
    kind: Kind
    value: Value
    leaf: bytes
    size: int

    def __repr__(self) -> str:
        # Its name only, as a state's: it is part of frames and acks, which error reporters print with all they hold.
        return f"<Entry {self.name}>"

    def same(self, other: Entry | None) -> bool:
        return other is not None and self.leaf == other.leaf


def entry(name: str, value: Value) -> Entry:
    """An entry of a checked name and value (see :func:`otelctx.context.keys.normalise`)."""
    kind = kind_of(value)
    raw = encode_value(value)
    prefix, label = _label(name)
    leaf = sha256(b"%b%c%b%b" % (prefix, kind, len(raw).to_bytes(2, "big"), raw)).digest()[:16]
    size = label + _value_size(value, len(raw))
    return Entry(name, kind, value, leaf, 1 + _varint(size) + size)


@lru_cache(maxsize=4096)
def _label(name: str) -> tuple[bytes, int]:
    """How a leaf begins, and the bytes that the key takes in a frame. A frame of 64 entries is read in a fifth less
    time for it, and an application has few names."""
    label = name.encode()
    return struct.pack(">H", len(label)) + label, 2 if name in _IDS else 1 + _varint(len(label)) + len(label)


def _value_size(value: Value, length: int) -> int:
    if isinstance(value, str | bytes):
        return 1 + _varint(length) + length
    if isinstance(value, bool):
        return 2
    if isinstance(value, int):  # sint64: zigzag, so that −1 takes one byte and not ten
        return 1 + _varint((value << 1) ^ (value >> 63))
    return 9


class State(Mapping[str, Value]):
    """Immutable map of name → value with a root. Changing it makes a new one that shares the entries."""

    __slots__ = ("_entries", "_root", "_size", "session_id")

    def __init__(self, entries: Mapping[str, Entry] | None = None) -> None:
        """``entries`` must be keyed by their own names; it is taken over, not copied.

        Raises :class:`ContextLimitExceeded` over 64 entries or 2900 bytes of FULL frame (MAC and completeness entry
        included), counted arithmetically.
        """
        self._entries: Mapping[str, Entry] = entries if entries is not None else {}
        self._root: bytes | None = None
        session = self._entries.get(SESSION_ID)
        # Read several times with every exchange.
        self.session_id: Final = session.value if session is not None and isinstance(session.value, str) else None
        count = len(self._entries) - (INCOMPLETE in self._entries)
        self._size = _FULL_FIXED + MAC_BYTES + sum(e.size for e in self._entries.values())
        if INCOMPLETE not in self._entries:
            self._size += _RESERVED
        if count >= MAX_ENTRIES:
            raise ContextLimitExceeded(
                f"{count} context entries; {MAX_ENTRIES - 1} and the completeness entry are carried"
            )
        if self._size > MAX_FULL_BYTES:
            raise ContextLimitExceeded(
                f"the context would take {self._size} bytes as a full frame; {MAX_FULL_BYTES} are carried. "
                f"Keep large values in a store and carry their ids"
            )

    # Mapping

    def __getitem__(self, name: str) -> Value:
        return self._entries[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return self.root == other.root if isinstance(other, State) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        # Names only: values may be secrets, and reprs end up in logs.
        return f"<State {self.root.hex()[:8]} {sorted(self._entries)}>"

    # what the protocol needs

    @property
    def root(self) -> bytes:
        """16 bytes, computed on first use."""
        if self._root is None:
            entries = self._entries
            if entries:
                # Names are ASCII, so their text order is their byte order.
                self._root = sha256(b"".join([entries[n].leaf for n in sorted(entries)])).digest()[:16]
            else:
                self._root = _EMPTY_ROOT
        return self._root

    @property
    def size(self) -> int:
        """Bytes of the FULL frame of this state, MAC included and the completeness entry's place reserved."""
        return self._size

    @property
    def incomplete(self) -> bool:
        """Whether a hop before this one could not deliver all of its context; sticky downstream."""
        found = self._entries.get(INCOMPLETE)
        return found is not None and found.value is True

    def entry(self, name: str) -> Entry | None:
        return self._entries.get(name)

    def entries(self) -> list[Entry]:
        """All entries in byte order of their names, as frames carry them."""
        return [self._entries[n] for n in sorted(self._entries)]

    def put(self, name: str, value: Value) -> State:
        """With ``name`` set to a checked value; ``self`` if that changes nothing."""
        new = entry(name, value)
        if new.same(self._entries.get(name)):
            return self
        return State({**self._entries, name: new})

    def drop(self, names: Iterable[str]) -> State:
        gone = set(names)
        return State({n: e for n, e in self._entries.items() if n not in gone}) if gone else self

    def apply(self, put: Iterable[Entry], delete: Iterable[str]) -> State:
        """A delta: ``delete`` first, then ``put``. :meth:`diff` is its inverse."""
        gone = set(delete)
        kept = {n: e for n, e in self._entries.items() if n not in gone}
        kept.update((e.name, e) for e in put)
        return State(kept)

    def diff(self, target: State) -> tuple[list[Entry], list[str]]:
        """``(put, delete)``, sorted by name, that turn this state into ``target``: ``a.apply(*a.diff(b)) == b``."""
        old, new = self._entries, target._entries
        put = [e for n, e in sorted(new.items()) if not e.same(old.get(n))]
        return put, sorted(n for n in old if n not in new)


EMPTY: Final = State()


@dataclass(frozen=True, slots=True)
class Window:
    """What a worker reports of a session's token window. All counts are tokens; ``level`` is the pressure level 0–4.

    ``(generation, version)`` orders reports of one session: a newer one replaces an older one whole.
    """

    used: int
    limit: int
    evicted: int = 0
    level: int = 0
    generation: int = 0
    version: int = 0

    def newer_than(self, other: Window | None) -> bool:
        return other is None or (self.generation, self.version) > (other.generation, other.version)
