"""The objects of a chat completion as OpenAI's API spells them, plus ``otelctx``. Pure: ids and times are passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from otelctx.context.state import Window
from otelctx.inference.turn import TurnResult, Usage
from otelctx.serving.answers import dumps

__all__ = ["DONE", "Completion", "event", "extension"]

DONE: Final = b"data: [DONE]\n\n"

Json = dict[str, Any]


def event(value: object) -> bytes:
    """One server-sent event."""
    return f"data: {dumps(value)}\n\n".encode("ascii")


@dataclass(frozen=True, slots=True)
class Completion:
    """What every object of one answer has in common. ``created`` is in seconds since the epoch."""

    id: str
    created: int
    model: str

    def whole(self, text: str, result: TurnResult, ack: str | None = None) -> Json:
        """The answer in one piece."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": result.finish_reason,
        }
        head = self._head("chat.completion", [choice])
        return head | {"usage": _usage(result.usage), "otelctx": extension(result, ack)}

    def first(self) -> Json:
        """The chunk that opens a stream: whose answer it is."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def text(self, text: str) -> Json:
        return self._chunk({"content": text})

    def finish(self, reason: str) -> Json:
        return self._chunk({}, reason)

    def usage(self, usage: Usage) -> Json:
        """The chunk that a client asked for by ``stream_options``."""
        return self._head("chat.completion.chunk", []) | {"usage": _usage(usage)}

    def _chunk(self, delta: Json, reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._head("chat.completion.chunk", [choice])

    def _head(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def extension(result: TurnResult, ack: str | None) -> Json:
    """The ``otelctx`` object of an answer: what OpenAI's API has no words for. All counts are tokens.

    ``dropped``: removed from the prompt to make it fit; ``reused``: not computed again; ``limit``: which limit ended
    the answer; ``cut``: the structure that this cut; ``degraded``: ``max_tokens`` if pressure left less room for the
    answer than was asked for; ``ack``: what the caller's context learns at the answer's end, as the value of an
    ``otelctx-ack`` header.
    """
    return {
        "session": result.session,
        "window": None if result.window is None else _window(result.window),
        "dropped": result.usage.dropped_tokens,
        "reused": result.usage.cached_tokens,
        "limit": result.limit,
        "cut": result.cut,
        "degraded": result.degraded,
        "ack": ack,
    }


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _window(window: Window) -> Json:
    return {
        "used": window.used,
        "limit": window.limit,
        "evicted": window.evicted,
        "level": window.level,
        "generation": window.generation,
        "version": window.version,
    }
