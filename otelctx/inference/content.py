"""What an answer was cut inside of. Pure."""

from __future__ import annotations

import json
from typing import Literal

__all__ = ["cut_inside"]

_FENCE = "```"


def cut_inside(text: str) -> Literal["json", "code"] | None:
    """What kind of structure ``text``, which a limit has ended, is unfinished in: a fenced block of code, or JSON."""
    if text.count(_FENCE) % 2:
        return "code"
    text = text.strip()
    if text[:1] not in ("{", "["):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "json"
    return None
