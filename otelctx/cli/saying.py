"""What a long-running command says of itself: one line for each thing, for people or as JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

__all__ = ["Progress", "Say"]


class Say:
    """Lines on standard output, flushed since somebody may wait for one: ``otelctx: …``, or with ``as_json`` an object
    that has ``event``, ``message`` and the facts. When nobody listens any more, nothing is said: what the command does
    is not done for its words."""

    def __init__(self, as_json: bool = False) -> None:
        self._as_json = as_json

    def __call__(self, event: str, message: str, **facts: Any) -> None:
        """``event`` is a short stable word."""
        line = json.dumps({"event": event, "message": message} | facts) if self._as_json else f"otelctx: {message}"
        try:
            print(line, flush=True)
        except BrokenPipeError:
            # Nor is there anybody for what is left in the buffer, which the interpreter would try again at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Progress:
    """Long work: each step once, and then every quarter of it."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._told: dict[str, int] = {}

    def __call__(self, text: str, share: float | None) -> None:
        quarter = -1 if share is None else int(share * 4)
        if self._told.get(text, -2) >= quarter:
            return
        self._told[text] = quarter
        if share is None:
            self._say("progress", text)
        else:
            self._say("progress", f"{text}: {quarter * 25} %", share=quarter / 4)
