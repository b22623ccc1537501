"""An answer's text, looked at: what it was cut inside of, and messages as the GenAI conventions write them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Literal

from otelctx.inference.turn import Message

__all__ = ["cut_inside", "messages_json"]

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


def messages_json(messages: Iterable[Message], finish_reason: str | None = None) -> str:
    """``gen_ai.input.messages``, or ``gen_ai.output.messages`` with a ``finish_reason``."""
    items = [{"role": m.role, "parts": [{"type": "text", "content": m.content}]} for m in messages]
    if finish_reason is not None:
        return json.dumps([item | {"finish_reason": finish_reason} for item in items])
    return json.dumps(items)
