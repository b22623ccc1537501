"""A request's token ids by their parts, and how messages are grouped into exchanges: values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from otelctx.inference.turn import Message

__all__ = ["Prompt", "exchanges_of", "system_of", "without"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a request: ``head`` is what never leaves a window, ``exchanges`` are the messages from one question
    to before the next, oldest first, and ``open`` opens the answer.

    ``cut`` exchanges, ``dropped`` tokens in all, were left out already: with what is here they make the rendered
    prompt. What is rendered as a whole is one exchange here, with ``earlier`` ones in it; if it is a session's, so that
    its window is to be rewritten, then ``messages`` are its conversation, as (role, text).
    """

    head: tuple[int, ...]
    exchanges: tuple[tuple[int, ...], ...]
    open: tuple[int, ...]
    neutralised: int = 0
    cut: int = 0
    dropped: int = 0
    earlier: int = 0
    messages: tuple[tuple[str, str], ...] | None = None

    @property
    def history(self) -> bool:
        """Whether there are exchanges before the newest, or were."""
        return len(self.exchanges) > 1 or self.earlier + self.cut > 0

    @property
    def ids(self) -> list[int]:
        return [*self.head, *(token for exchange in self.exchanges for token in exchange), *self.open]


def system_of(messages: Sequence[Message]) -> str | None:
    """The text of the system message that a conversation begins with, if it does."""
    return messages[0].content if messages and messages[0].role == "system" else None


def exchanges_of(messages: Sequence[Message], first: bool) -> list[list[tuple[int, Message]]]:
    """Numbered messages by exchange: one ends with an answer. The head of a conversation is in none."""
    exchanges: list[list[tuple[int, Message]]] = []
    skip = 1 if first and system_of(messages) is not None else 0
    for index, message in enumerate(messages[skip:], skip):
        if index == skip or messages[index - 1].role == "assistant":
            exchanges.append([])
        exchanges[-1].append((index, message))
    return exchanges


def without(messages: Sequence[Message], count: int) -> tuple[Message, ...]:
    """A conversation without its ``count`` oldest exchanges: what it begins with stays."""
    if count == 0:
        return tuple(messages)
    skip = 0 if system_of(messages) is None else 1
    start = exchanges_of(messages, True)[count][0][0]
    return (*messages[:skip], *messages[start:])
