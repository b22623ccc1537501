"""``states.json``: the static table; entries with their leaves; states with their roots; values that are none."""

from __future__ import annotations

import struct
from typing import Any

from otelctx.context.keys import INT_MAX, INT_MIN
from otelctx.context.state import encode_value
from otelctx.semconv import STATIC_TABLE, TABLE_REVISION, TABLE_SINCE
from scripts.vectors.forms import entry_form
from scripts.vectors.samples import STATES

__all__ = ["record"]

_REFUSED: dict[str, tuple[str, Any]] = {
    "NaN": ("v", float("nan")),
    "a NaN with a sign and a payload": ("v", struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]),
    "an integer over 63 bits": ("v", INT_MAX + 1),
    "an integer under 63 bits": ("v", INT_MIN - 1),
    "text of 1025 bytes": ("v", "x" * 1025),
    "text of 1026 bytes in 513 characters": ("v", "ü" * 513),
    "1025 bytes": ("v", b"x" * 1025),
    "a name of upper case": ("Tenant", "x"),
    "an empty name": ("", "x"),
    "a name of 65 characters": ("a" * 65, "x"),
    "a name that begins with a dot": (".a", "x"),
    "a name that is not ASCII": ("ü", "x"),
    "a name with a line feed at its end": ("a\n", "x"),
}


def record() -> dict[str, Any]:
    states = [
        {
            "name": name,
            "entries": [
                {
                    **entry_form(item.name, item.value),
                    "type_byte": int(item.kind),
                    "canonical": encode_value(item.value).hex(),
                    "leaf": item.leaf.hex(),
                }
                for item in state.entries()
            ],
            "root": state.root.hex(),
            "full_size": state.size,
        }
        for name, state in STATES.items()
    ]
    return {
        "about": (
            "leaf = SHA-256(u16 len, name, type byte, u16 len, canonical value)[:16]; root = SHA-256(leaves in byte "
            "order of their names)[:16]; full_size counts a FULL frame with MAC and room for otelctx.incomplete"
        ),
        "table": {
            "revision": TABLE_REVISION,
            "ids": [
                {"id": key_id, "name": name, "since": TABLE_SINCE.get(key_id, 1)}
                for key_id, name in sorted(STATIC_TABLE.items())
            ],
        },
        "states": states,
        "normalised": [{"name": "minus zero", "given": entry_form("v", -0.0), "stored": entry_form("v", 0.0)}],
        "refused": [{"name": why, "given": entry_form(name, value)} for why, (name, value) in _REFUSED.items()],
    }
