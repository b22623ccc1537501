"""What a turn was asked and has answered, as far as telemetry is to have it: nothing of it, unless somebody asks.

The form is that of semantic-conventions-genai v0.1.0: on a span JSON in a string, on a log record the same as values.
System messages are part of the chat history in OpenAI's API, hence of ``gen_ai.input.messages``, as the conventions
say; ``gen_ai.system_instructions`` is for APIs that take them apart from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from otelctx import semconv
from otelctx.inference.turn import Message, TurnRequest
from otelctx.settings import CaptureContent
from otelctx.telemetry import sanitize

__all__ = ["MAX_CHARACTERS", "MAX_MESSAGES", "Transcript"]

# Of the newest messages, and of their text. More would make a batch that collectors refuse as a whole.
MAX_MESSAGES: Final = 128
MAX_CHARACTERS: Final = 32768

_ON_SPAN: Final = ("SPAN_ONLY", "SPAN_AND_EVENT")
_ON_EVENT: Final = ("EVENT_ONLY", "SPAN_AND_EVENT")

Json = dict[str, Any]


class Transcript:
    """Of one turn. ``on_span`` and ``on_event`` say where it is wanted."""

    __slots__ = ("_parts", "_request", "on_event", "on_span")

    def __init__(self, request: TurnRequest, where: CaptureContent) -> None:
        self._request = request
        self._parts: list[str] = []
        self.on_span = where in _ON_SPAN
        self.on_event = where in _ON_EVENT

    def add(self, text: str) -> None:
        """A piece of the answer."""
        self._parts.append(text)

    @property
    def answer(self) -> str:
        return "".join(self._parts)

    def asked(self) -> Json:
        """``gen_ai.input.messages`` as values; nothing for a prompt of token ids, which has no text."""
        prompt = self._request.prompt
        messages = (Message("user", prompt),) if isinstance(prompt, str) else self._request.messages
        return {semconv.GEN_AI_INPUT_MESSAGES: _written(messages)} if messages else {}

    def answered(self, finish_reason: str) -> Json:
        """``gen_ai.output.messages`` as values: the answer so far, which ended for ``finish_reason``."""
        if not self._parts and finish_reason == "error":
            return {}
        (message,) = _written((Message("assistant", self.answer),))
        return {semconv.GEN_AI_OUTPUT_MESSAGES: [message | {"finish_reason": finish_reason}]}

    @staticmethod
    def as_attributes(found: Json) -> dict[str, str]:
        """The same for a span."""
        return {key: json.dumps(value, ensure_ascii=False) for key, value in found.items()}


def _written(messages: Iterable[Message]) -> list[Json]:
    """The newest messages, oldest first. Where room ends, text is cut with ``…``; roles are kept."""
    left, written = MAX_CHARACTERS, list[Json]()
    for message in reversed(tuple(messages)[-MAX_MESSAGES:]):
        text = sanitize.text(message.content, max(1, left))
        left -= len(text)
        item: Json = {"role": message.role, "parts": [{"type": "text", "content": text}]}
        written.append(item if message.name is None else item | {"name": sanitize.text(message.name, 64)})
    return written[::-1]
