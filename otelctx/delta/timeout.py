"""``otelctx-timeout-ms``: the milliseconds that are left of a deadline. Pure.

A remainder and no point in time, since two machines' clocks differ. Two significant digits, rounded down: a deadline is
never extended, and on one connection of HTTP/2 requests that begin with the same one share an indexed line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["decode", "encode"]

_MAX: Final = 99_000_000  # milliseconds, more than a day
_DIGITS: Final = 8


def encode(seconds: float) -> str:
    """The header's value for so many ``seconds`` left; ``0`` if the deadline has passed."""
    if not seconds * 1000 < _MAX:
        return str(_MAX)
    left = int(max(0.0, seconds) * 1000)
    unit = 10 ** max(0, len(str(left)) - 2)
    return str(left - left % unit)


def decode(lines: Sequence[bytes | str]) -> float | None:
    """Seconds, 0 to 99999.999; ``None`` for anything but one line of one to eight ASCII digits."""
    if len(lines) != 1 or not 0 < len(lines[0]) <= _DIGITS:
        return None
    line = lines[0]
    text = line.decode("latin-1") if isinstance(line, bytes) else line
    return int(text) / 1000 if text.isascii() and text.isdecimal() else None
