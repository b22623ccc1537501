"""Frame bodies that this implementation would never write, made with protobuf alone or byte by byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from otelctx.context.state import State, entry
from otelctx.delta.codec import encode_frame
from otelctx.delta.messages import Frame, FrameKind, delta, full, ref
from otelctx.delta.v1 import otelctx_pb2 as pb
from scripts.vectors.forms import put_all
from scripts.vectors.samples import STATES

__all__ = ["ACCEPTED", "LIMITS", "MALFORMED", "OVERSIZED", "changed"]

CHAT: Final = STATES["chat"]
_FULL: Final = encode_frame(full(CHAT))
_REF: Final = encode_frame(ref(CHAT))
_DELTA: Final = encode_frame(delta(CHAT, STATES["chat, other tier"]))


def changed(body: bytes, change: Callable[[Any], object]) -> bytes:
    """``body`` with ``change`` done to its message."""
    message = pb.Frame.FromString(body)
    change(message)
    return message.SerializeToString(deterministic=True)


def _with(**fields: Any) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        for name, value in fields.items():
            setattr(message, name, value)

    return change


def _adding(**fields: Any) -> Callable[[Any], object]:
    return lambda message: message.put.add(**fields)


def _raw_entry(inner: bytes) -> bytes:
    return b"\x22" + bytes((len(inner),)) + inner


def _raw(state: State, entries: bytes) -> bytes:
    """A FULL of ``state``, whose entries are given as bytes."""
    return b"\x08\x01\x12\x10" + state.root + entries + b"\x38\x01"


def _minus_zero(root_of: float) -> bytes:
    state = put_all({"session.id": "s", "v": root_of})
    body = encode_frame(full(state))
    return body.replace(bytes(8), bytes(7) + b"\x80")


_ONE = STATES["one"]
_LARGEST = STATES["2900 bytes"]
_ONE_ENTRY = _raw_entry(b"\x08\x01\x1a\x06chat-1")

# What no receiver can read: nobody answers.
MALFORMED: Final[dict[str, bytes]] = {
    "a length past the end": b"\x12\x10abc",
    "a tag of field 0": b"\x00\x01" + _FULL,
    "no kind": changed(_FULL, _with(kind=0)),
    "a kind that does not exist": changed(_FULL, _with(kind=4)),
    "no root": changed(_FULL, _with(root=b"")),
    "a root of 15 bytes": changed(_FULL, _with(root=CHAT.root[:15])),
    "a root of 17 bytes": changed(_FULL, _with(root=CHAT.root + b"\0")),
    "a DELTA without base": changed(_DELTA, _with(base=b"")),
    "a DELTA with a base of 7 bytes": changed(_DELTA, _with(base=CHAT.root[:7])),
    "a DELTA with a base of 16 bytes": changed(_DELTA, _with(base=CHAT.root)),
    "a FULL with a base": changed(_FULL, _with(base=CHAT.root[:8])),
    "a REF with a base": changed(_REF, _with(base=CHAT.root[:8])),
    "a REF with an entry": changed(_REF, _adding(id=2, text="acme")),
    "a REF that deletes": changed(_REF, lambda m: m.del_ids.append(2)),
    "a FULL that deletes": changed(_FULL, lambda m: m.del_names.append("x")),
    "no table revision": changed(_FULL, _with(table=0)),
    "an entry without key": changed(_FULL, _adding(text="x")),
    "an entry without value": changed(_FULL, _adding(name="x")),
    "an entry that is empty": changed(_FULL, _adding()),
    "a key twice, by id": changed(_FULL, _adding(id=12, text="gold")),
    "a key twice, by name": changed(changed(_FULL, _adding(name="x", int=1)), _adding(name="x", int=1)),
    "a key of the table by its name": changed(_FULL, _adding(name="user.id", text="x")),
    "id 0": changed(_FULL, _adding(id=0, text="x")),
    "an id between those of the table": changed(_FULL, _adding(id=31, text="x")),
    "id 64": changed(_FULL, _adding(id=64, text="x")),
    "the largest id": changed(_FULL, _adding(id=2**32 - 1, text="x")),
    "an empty name": changed(_FULL, _adding(name="", text="x")),
    "a name of upper case": changed(_FULL, _adding(name="Tenant", text="x")),
    "a name of 65 characters": changed(_FULL, _adding(name="a" * 65, text="x")),
    "a name with a line feed at its end": changed(_FULL, _adding(name="a\n", text="x")),
    "a name that is not ASCII": changed(_FULL, _adding(name="ü", text="x")),
    "text that is not UTF-8": _raw(_ONE, _raw_entry(b"\x08\x01\x1a\x02\xc3\x28")),
    "text with half a surrogate pair": _raw(_ONE, _raw_entry(b"\x08\x01\x1a\x03\xed\xa0\x80")),
    "a name that is not UTF-8": _raw(_ONE, _raw_entry(b"\x12\x01\xff\x1a\x01x")),
    "NaN": changed(_FULL, _adding(name="v", float=float("nan"))),
    "deleted twice, by id": changed(_DELTA, lambda m: m.del_ids.extend((2, 2))),
    "deleted twice, by name": changed(_DELTA, lambda m: m.del_names.extend(("x", "x"))),
    "put and deleted, by id": changed(_DELTA, lambda m: m.del_ids.append(12)),
    "put and deleted, by name": changed(
        changed(_DELTA, _adding(name="x", int=1)), lambda m: m.del_names.append("x")
    ),
    "deleted by an id that the table does not have": changed(_DELTA, lambda m: m.del_ids.append(63)),
    "deleted by id 0": changed(_DELTA, lambda m: m.del_ids.append(0)),
    "a key of the table deleted by its name": changed(_DELTA, lambda m: m.del_names.append("tenant.id")),
    "a deleted name that is empty": changed(_DELTA, lambda m: m.del_names.append("")),
    "a deleted name that is none": changed(_DELTA, lambda m: m.del_names.append("A")),
}  # fmt: skip


def _many(count: int, **more: Any) -> State:
    """A state that no ``State`` may be, but that has a root: only names and leaves count."""
    found = State.__new__(State)
    entries = {name: entry(name, value) for name, value in {f"k{at:02}": at for at in range(count)}.items()}
    entries.update({name: entry(name, value) for name, value in more.items()})
    found._entries, found._root = entries, None
    return found


OVERSIZED: Final[dict[str, bytes]] = {
    "65 entries": encode_frame(full(_many(65))),
    "65 entries, the same key in all": encode_frame(Frame(FrameKind.FULL, CHAT.root, put=(entry("k", 1),) * 65)),
    "65 deletes": changed(_DELTA, lambda m: m.del_names.extend(f"k{at}" for at in range(65))),
    "40 deletes by id and 25 by name": changed(
        _DELTA, lambda m: (m.del_ids.extend([1] * 40), m.del_names.extend(f"k{at}" for at in range(25)))
    ),
    "text of 1025 bytes": changed(_FULL, _adding(name="v", text="x" * 1025)),
    "text of 1026 bytes in 513 characters": changed(_FULL, _adding(name="v", text="ü" * 513)),
    "1025 bytes": changed(_FULL, _adding(name="v", bytes=b"x" * 1025)),
}

# Well formed, and more than a state may be: the application runs without, and the sender is told.
LIMITS: Final[dict[str, bytes]] = {
    "64 entries without otelctx.incomplete": encode_frame(full(_many(64))),
    "2901 bytes": encode_frame(full(_many(0, **{**_LARGEST, "c": "z" + str(_LARGEST["c"])}))),
    "a DELTA that makes 2901 bytes and more": encode_frame(
        Frame(
            FrameKind.DELTA, CHAT.root, CHAT.root[:8],
            (entry("a", "x" * 1000), entry("b", "x" * 1000), entry("c", "x" * 800)),
        )
    ),
}  # fmt: skip

# Not what this implementation writes, and yet what it must read: protobuf says so, and the root decides.
ACCEPTED: Final[dict[str, bytes]] = {
    "entries that are not sorted": changed(_FULL, lambda m: m.put.reverse()),
    "a field that is not known": _FULL + b"\x72\x03abc",
    "a field 15 before the last": b"\x7a\x02ab" + _FULL,
    "fields out of order": _raw(CHAT, b"")[-2:] + _FULL[:-2],
    "the kind twice, the last counts": b"\x08\x03" + _FULL,
    "the root twice, the last counts": b"\x12\x10" + bytes(16) + _FULL,
    "an id and then a name, the last counts": _raw(
        put_all({"x": 1}), _raw_entry(b"\x08\x02" + b"\x12\x01x" + b"\x20\x02")
    ),
    "a name and then an id, the last counts": _raw(
        put_all({"tenant.id": 1}), _raw_entry(b"\x12\x01x" + b"\x08\x02" + b"\x20\x02")
    ),
    "two values, the last counts": _raw(_ONE, _raw_entry(b"\x08\x01" + b"\x20\x02" + b"\x1a\x06chat-1")),
    "a varint that is longer than it must be": _raw(_ONE, _ONE_ENTRY)[:-1] + b"\x81\x00",
    "true as 2": _raw(put_all({"x": True}), _raw_entry(b"\x12\x01x\x28\x02")),
    "minus zero, which is stored as zero": _minus_zero(0.0),
    "bytes of a value that look like a MAC, with one behind": encode_frame(full(STATES["bytes.trailer"])),
    "deletes of what the base does not have": changed(_DELTA, lambda m: m.del_names.append("x")),
    "puts of what the base has": changed(_DELTA, _adding(id=2, text="acme")),
    "the empty state": encode_frame(full(State())),
    "a state without session": encode_frame(full(STATES["no session"])),
    "63 entries and otelctx.incomplete": encode_frame(
        full(_many(62, **{"session.id": "s", "otelctx.incomplete": True}))
    ),
    "2900 bytes": encode_frame(full(STATES["2900 bytes"])),
}
