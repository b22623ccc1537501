"""How entries, states, frames and acks are written in JSON, and read back.

Bytes are hex digits, 64-bit integers are decimal text, a float is the hex of its eight IEEE bytes: nothing that a JSON
library could round, and NaN and infinity are writable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from otelctx.context.keys import Value
from otelctx.context.state import EMPTY, Entry, State, Window, entry
from otelctx.delta.messages import Ack, AckKind, Frame, FrameKind, Held, NackReason
from otelctx.policy.trust import Key

__all__ = [
    "ack_form",
    "entry_form",
    "frame_form",
    "key_form",
    "put_all",
    "read_ack",
    "read_entry",
    "read_frame",
    "read_value",
    "state_form",
    "value_form",
]

Form = dict[str, Any]

_TYPES: Final = {str: "str", int: "int", bool: "bool", float: "float", bytes: "bytes"}


def value_form(value: Value) -> Form:
    """``type`` and ``value``."""
    written: object = value
    if type(value) is int:
        written = str(value)
    elif isinstance(value, float):
        written = struct.pack(">d", value).hex()
    elif isinstance(value, bytes):
        written = value.hex()
    return {"type": _TYPES[type(value)], "value": written}


def read_value(form: Mapping[str, Any]) -> Value:
    """Inverse of :func:`value_form`; the value is as it stands, not normalised."""
    kind, written = form["type"], form["value"]
    if kind == "int":
        return int(written)
    if kind == "float":
        number: float = struct.unpack(">d", bytes.fromhex(written))[0]
        return number
    if kind == "bytes":
        return bytes.fromhex(written)
    plain: str | bool = written
    return plain


def entry_form(name: str, value: Value) -> Form:
    return {"key": name, **value_form(value)}


def read_entry(form: Mapping[str, Any]) -> Entry:
    return entry(form["key"], read_value(form))


def state_form(state: State) -> list[Form]:
    """The entries of ``state``, in the order in which frames carry them."""
    return [entry_form(item.name, item.value) for item in state.entries()]


def put_all(values: Mapping[str, Value], state: State = EMPTY) -> State:
    """``state`` with ``values`` put one by one."""
    for name, value in values.items():
        state = state.put(name, value)
    return state


def _entries(items: Iterable[Entry]) -> list[Form]:
    return [entry_form(item.name, item.value) for item in items]


def frame_form(frame: Frame) -> Form:
    return {
        "kind": frame.kind.name,
        "root": frame.root.hex(),
        "base": frame.base.hex(),
        "put": _entries(frame.put),
        "delete": list(frame.delete),
        "table": frame.table,
    }


def read_frame(form: Mapping[str, Any]) -> Frame:
    return Frame(
        FrameKind[form["kind"]],
        bytes.fromhex(form["root"]),
        bytes.fromhex(form["base"]),
        tuple(map(read_entry, form["put"])),
        tuple(form["delete"]),
        form["table"],
    )


def _window_form(window: Window) -> Form:
    return {
        "used": window.used,
        "limit": window.limit,
        "evicted": str(window.evicted),
        "level": window.level,
        "generation": window.generation,
        "version": str(window.version),
    }


def ack_form(ack: Ack) -> Form:
    return {
        "kind": ack.kind.name,
        "root": ack.root.hex(),
        "held": ack.held.name,
        "boot_id": ack.boot_id,
        "reason": ack.reason.name,
        "table": ack.table,
        "final": ack.final,
        "event": str(ack.event),
        "up": _entries(ack.ups),
        "window": None if ack.window is None else _window_form(ack.window),
        "moved": ack.moved,
        "truncated": ack.truncated,
    }


def read_ack(form: Mapping[str, Any]) -> Ack:
    window = form["window"]
    return Ack(
        AckKind[form["kind"]],
        bytes.fromhex(form["root"]),
        Held[form["held"]],
        form["boot_id"],
        NackReason[form["reason"]],
        form["table"],
        form["final"],
        int(form["event"]),
        tuple(map(read_entry, form["up"])),
        None if window is None else Window(**{name: int(number) for name, number in window.items()}),
        form["moved"],
        form["truncated"],
    )


def key_form(key: Key) -> Form:
    return {"id": key.key_id, "domain": key.domain, "master": key.master.hex()}
