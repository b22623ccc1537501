"""``headers.json``: which header lines are a message, and which are nothing."""

from __future__ import annotations

import base64
from typing import Any

from otelctx.delta.codec import from_header
from otelctx.errors import ProtocolError

__all__ = ["record"]


def _of(size: int) -> str:
    return f":{base64.b64encode(bytes(size)).decode()}:"


_LINES: dict[str, list[str]] = {
    "one byte": [":AA==:"],
    "two bytes": [":AAE=:"],
    "three bytes": [":AAEC:"],
    "both signs of the alphabet": [":+/8=:"],
    "no bytes": ["::"],
    "blanks around it": [" \t:AAEC: "],
    "a blank inside": [":AA EC:"],
    "a line feed inside": [":AA\nEC:"],
    "no padding": [":AAE:"],
    "padding in the middle": [":AA==AAEC:"],
    "padding too much": [":AAEC=:"],
    "a group of padding too much": [":AAEC====:"],
    "pad bits that are not zero": [":AAF=:"],
    "the alphabet of URLs": [":-_8=:"],
    "a parameter": [":AAEC:;a=1"],
    "two items": [":AAEC:, :AAEC:"],
    "a token": ["AAEC"],
    "a string": ['"AAEC"'],
    "one colon": [":"],
    "no end": [":AAEC"],
    "no beginning": ["AAEC:"],
    "nothing": [""],
    "not ASCII": [":AAÉC:"],
    "3060 bytes": [_of(3060)],
    "3061 bytes": [_of(3061)],
    "3069 bytes, 4094 characters": [_of(3069)],
    "4098 characters": [_of(3072)],
    "4097 characters, blanks counted": [_of(3060) + " " * (4097 - len(_of(3060)))],
    "two lines": [":AAEC:", ":AAEC:"],
    "two lines, one of them empty": [":AAEC:", ""],
}


def _outcome(lines: list[str]) -> tuple[str | None, str | None]:
    if len(lines) != 1:
        return None, "repeated"
    try:
        return from_header(lines[0]).hex(), None
    except ProtocolError as exc:
        return None, exc.reason


def record() -> dict[str, Any]:
    found = []
    for name, lines in _LINES.items():
        data, reason = _outcome(lines)
        found.append({"name": name, "lines": lines, "bytes": data, "reason": reason})
    return {"about": "values of all lines of one header; bytes, or the reason why there are none", "headers": found}
