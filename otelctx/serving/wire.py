"""The objects of an answer as OpenAI's API spells them, plus ``otelctx``. Pure: ids and times are passed in.

An answer has a choice for each turn. What a choice looks like is the difference between chat and text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from otelctx.context.state import Window
from otelctx.inference.turn import TurnResult, Usage
from otelctx.serving.answers import dumps

__all__ = ["DONE", "ChatForm", "Form", "TextForm", "event", "extension"]

DONE: Final = b"data: [DONE]\n\n"

Json = dict[str, Any]


def event(value: object) -> bytes:
    """One server-sent event."""
    return f"data: {dumps(value)}\n\n".encode("ascii")


@dataclass(frozen=True, slots=True)
class Form:
    """What every object of one answer has in common. ``id`` without its prefix; ``created`` in seconds since the epoch.

    With ``usage`` each chunk of a stream has that field: ``null`` but for the last one, as the API has it.
    """

    id: str
    created: int
    model: str
    usage: bool = False

    prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    @abstractmethod
    def choice(self, index: int, text: str, reason: str) -> Json:
        """A whole choice."""

    @abstractmethod
    def opening(self, index: int) -> Json | None:
        """The piece that opens a choice in a stream, if one does."""

    @abstractmethod
    def piece(self, index: int, text: str, reason: str | None = None) -> Json:
        """A piece of a choice."""

    def whole(self, texts: Sequence[str], results: Sequence[TurnResult], ack: str | None = None) -> Json:
        """The answer in one piece."""
        choices = [
            self.choice(index, text, result.finish_reason)
            for index, (text, result) in enumerate(zip(texts, results, strict=True))
        ]
        own = {"usage": _usage(results), "otelctx": extension(results, ack)}
        return self._head(self.whole_object, choices) | own

    @property
    def response_id(self) -> str:
        """As the client has it."""
        return f"{self.prefix}{self.id}"

    def chunk(self, piece: Json) -> Json:
        head = self._head(self.chunk_object, [piece])
        return head | {"usage": None} if self.usage else head

    def used(self, results: Sequence[TurnResult]) -> Json:
        """The chunk that a client asked for by ``stream_options``."""
        return self._head(self.chunk_object, []) | {"usage": _usage(results)}

    def _head(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class ChatForm(Form):
    """An answer of ``/v1/chat/completions``."""

    __slots__ = ()
    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def choice(self, index: int, text: str, reason: str) -> Json:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": reason,
        }

    def opening(self, index: int) -> Json:
        return self._delta(index, {"role": "assistant", "content": "", "refusal": None}, None)

    def piece(self, index: int, text: str, reason: str | None = None) -> Json:
        return self._delta(index, {"content": text} if text else {}, reason)

    def _delta(self, index: int, delta: Json, reason: str | None) -> Json:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


class TextForm(Form):
    """An answer of ``/v1/completions``."""

    __slots__ = ()
    prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def choice(self, index: int, text: str, reason: str) -> Json:
        return self.piece(index, text, reason)

    def opening(self, index: int) -> None:
        return None

    def piece(self, index: int, text: str, reason: str | None = None) -> Json:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def extension(results: Sequence[TurnResult], ack: str | None) -> Json:
    """The ``otelctx`` object of an answer: what OpenAI's API has no words for. All counts are tokens.

    ``dropped``: removed from the prompt to make it fit; ``reused``: not computed again; ``limit``: which limit ended
    the answer; ``cut``: the structure that this cut; ``degraded``: ``max_tokens`` if pressure left less room for the
    answer than was asked for; ``ack``: what the caller's context learns at the answer's end, as the value of an
    ``otelctx-ack`` header. Of several turns the counts are sums, and what is true of one turn alone is ``null``.
    """
    one = results[0] if len(results) == 1 else None
    return {
        "session": one and one.session,
        "window": None if one is None or one.window is None else _window(one.window),
        "dropped": sum(result.usage.dropped_tokens for result in results),
        "reused": sum(result.usage.cached_tokens for result in results),
        "limit": one and one.limit,
        "cut": one and one.cut,
        "degraded": one and one.degraded,
        "ack": ack,
    }


def _usage(results: Sequence[TurnResult]) -> Json:
    total = Usage(
        prompt_tokens=sum(result.usage.prompt_tokens for result in results),
        completion_tokens=sum(result.usage.completion_tokens for result in results),
        cached_tokens=sum(result.usage.cached_tokens for result in results),
    )
    return {
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "total_tokens": total.prompt_tokens + total.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": total.cached_tokens},
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
