"""``otelctx show header``: a frame or an ack in readable form."""

from __future__ import annotations

import json
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from otelctx import semconv
from otelctx.context.state import Entry
from otelctx.delta import codec
from otelctx.delta.messages import Ack, AckKind, Frame
from otelctx.errors import ConfigError, ProtocolError
from otelctx.telemetry import sanitize

__all__ = ["explain", "show"]

_NAMES: Final = {semconv.HEADER: "frame", semconv.ACK_HEADER: "ack"}
_SHOWN: Final = 200  # characters of a value


def explain(value: str) -> dict[str, Any]:
    """What the header says, as JSON could hold it. Raises :class:`~otelctx.errors.ConfigError` if it says nothing."""
    name, separator, rest = value.partition(": ")
    known = _NAMES.get(name.strip().lower()) if separator else None
    text = rest if known else value
    try:
        data = codec.from_header(text.strip())
        body, mac = codec.split_mac(data)
        message = _decode(body, known)
    except ProtocolError as error:
        raise ConfigError(f"not an otelctx or otelctx-ack header value: {error.message}") from None
    told = _frame(message) if isinstance(message, Frame) else _ack(message)
    signature = None if mac is None else {"key id": mac[0], "mac": mac[1:].hex()}
    return told | {"signed by": signature, "bytes": len(data), "header characters": len(text.strip())}


def _decode(body: bytes, known: str | None) -> Frame | Ack:
    if known != "ack":
        try:
            return codec.decode_frame(body)
        except ProtocolError:
            # A frame's root has 16 bytes, an ack's 8: one can't be taken for the other.
            if known == "frame":
                raise
    return codec.decode_ack(body)


def _frame(frame: Frame) -> dict[str, Any]:
    told: dict[str, Any] = {"message": "frame", "kind": frame.kind.name, "root": frame.root.hex()}
    if frame.base:
        told["base"] = frame.base.hex()
    return told | {"put": _entries(frame.put), "delete": list(frame.delete), "table revision": frame.table}


def _ack(ack: Ack) -> dict[str, Any]:
    told: dict[str, Any] = {"message": "ack", "kind": ack.kind.name, "root": ack.root.hex(), "held": ack.held.name}
    if ack.kind is AckKind.NACK:
        told["reason"] = ack.reason.name
    told |= {"up": _entries(ack.ups), "boot id": f"{ack.boot_id:08x}", "final": ack.final}
    if ack.event:
        told["event"] = f"{ack.event:016x}"
    if ack.window is not None:
        window = ack.window
        told["window"] = {name: getattr(window, name) for name in window.__slots__}
    if ack.moved:
        told["moved"] = _printable(ack.moved)
    return told | {"truncated": ack.truncated, "table revision": ack.table}


def _entries(entries: tuple[Entry, ...]) -> dict[str, Any]:
    return {e.name: e.value.hex() if isinstance(e.value, bytes) else e.value for e in entries}


def _printable(text: str) -> str:
    """Whoever sent the value must not get at the terminal."""
    text = sanitize.text(text, _SHOWN)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def show(value: str, *, as_json: bool) -> None:
    """Print what ``value`` says."""
    told = explain(value)
    if as_json:
        print(json.dumps(told, indent=2))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, item in told.items():
        if isinstance(item, dict):
            table.add_row(name, "" if item else "–")
            for key, inner in item.items():
                table.add_row(f"  {key}", _printable(str(inner)))
        elif item is not None:
            table.add_row(name, ", ".join(item) or "–" if isinstance(item, list) else str(item))
        else:
            table.add_row(name, "–")
    Console(markup=False, highlight=False).print(table)
