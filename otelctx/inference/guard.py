"""The token limit, enforced before the model is touched.

Bounds from the length in bytes come first where the tokenizer allows them: a text of two megabytes is refused without
tokenising it. What remains is tokenised exactly, from the newest message back, and no further than the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from otelctx.errors import ConfigError, TokenLimitExceeded
from otelctx.inference.overflow import MIN_OUTPUT, Mode, reserve_for, too_long
from otelctx.inference.tokenizer import ChatTokenizer, Piece, SpecialTokens
from otelctx.inference.turn import Message, check_max_tokens, messages_of

__all__ = ["Guard", "Prompt", "exchanges_of"]

# Characters up to which tokenising takes well under a millisecond, so that a thread would cost more than it saves.
_INLINE: Final = 8_000


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a request: ``head`` is what never leaves a window, ``exchanges`` are the messages from one question
    to before the next, oldest first, and ``open`` opens the answer."""

    head: tuple[int, ...]
    exchanges: tuple[tuple[int, ...], ...]
    open: tuple[int, ...]
    neutralised: int = 0

    @property
    def ids(self) -> list[int]:
        return [*self.head, *(token for exchange in self.exchanges for token in exchange), *self.open]


class Guard:
    """Refuses what does not fit into ``window`` tokens. Usable alone, from any thread.

    ``tokenizer``: one of transformers', with a chat template. ``special_tokens``: see
    :class:`~otelctx.inference.tokenizer.ChatTokenizer`.

    Raises:
        ConfigError: the tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        window: int = 8192,
        special_tokens: SpecialTokens = "neutralise",
    ) -> None:
        if window < 2 * MIN_OUTPUT:
            raise ConfigError(f"a window has at least {2 * MIN_OUTPUT} tokens, not {window}")
        self.tokenizer = (
            tokenizer
            if isinstance(tokenizer, ChatTokenizer)
            else ChatTokenizer(tokenizer, special_tokens=special_tokens)
        )
        self.window = window

    def admit(self, messages: Iterable[Message | Mapping[str, Any]], max_tokens: int | None = None) -> list[int]:
        """The ids of ``messages`` with an answer opened, if they leave room for one.

        Raises :class:`~otelctx.errors.TokenLimitExceeded`, whose details hold ``n_prompt_tokens`` (exact) or
        ``n_prompt_tokens_at_least``, and :class:`~otelctx.errors.InvalidRequest`.
        """
        return self.prompt(messages_of(messages), max_tokens).ids

    async def aadmit(self, messages: Iterable[Message | Mapping[str, Any]], max_tokens: int | None = None) -> list[int]:
        """:meth:`admit`, in a thread if the messages are long, so that the event loop goes on."""
        return (await self.aprompt(messages_of(messages), max_tokens)).ids

    def check(self, messages: Iterable[Message | Mapping[str, Any]], max_tokens: int | None = None) -> None:
        """As :meth:`admit`, without the ids: most requests are decided by their length in bytes alone."""
        checked = messages_of(messages)
        check_max_tokens(max_tokens)
        most = self.tokenizer.most_tokens(checked)
        if most is None or most > self._limit(max_tokens):
            self.prompt(checked, max_tokens)

    def refuse_by_bytes(
        self, messages: Sequence[Message], max_tokens: int | None = None, mode: Mode = "reject"
    ) -> None:
        """Raise as :meth:`prompt` what can be told without tokenising and without what stands before the messages."""
        check_max_tokens(max_tokens)
        _Build(self, mode, max_tokens, self._limit(max_tokens)).refuse_by_bytes(messages, 0)

    def prompt(
        self,
        messages: Sequence[Message],
        max_tokens: int | None = None,
        *,
        mode: Mode = "reject",
        first: bool = True,
        pinned: int = 0,
    ) -> Prompt:
        """The ids by their parts. Raises as :meth:`admit`.

        ``first``: the messages begin a conversation, so they come with a head; else ``pinned`` tokens of one stand
        before them. With mode ``turns`` only head and newest exchange must fit, since older ones can be dropped.
        """
        check_max_tokens(max_tokens)
        build = _Build(self, mode, max_tokens, self._limit(max_tokens))
        exchanges = exchanges_of(messages, first)
        build.refuse_by_bytes(messages, pinned)
        if not self.tokenizer.concatenative:
            whole = self.tokenizer.whole(messages)
            build.count(whole.ids, all_counted=True)
            return Prompt((), (whole.ids,), (), whole.neutralised)
        head = self.tokenizer.head(_system(messages)) if first else Piece(())
        build.total = pinned + len(self.tokenizer.open)
        build.count(head.ids, all_counted=not exchanges)
        return build.prompt(head, exchanges)

    async def aprompt(
        self,
        messages: Sequence[Message],
        max_tokens: int | None = None,
        *,
        mode: Mode = "reject",
        first: bool = True,
        pinned: int = 0,
    ) -> Prompt:
        """:meth:`prompt`, in a thread if the messages are long."""
        call = partial(self.prompt, messages, max_tokens, mode=mode, first=first, pinned=pinned)
        if sum(len(message.content) for message in messages) <= _INLINE:
            return call()
        return await asyncio.to_thread(call)

    def _limit(self, max_tokens: int | None) -> int:
        """Prompt tokens that leave room for the least answer that would do."""
        return self.window - min(reserve_for(max_tokens, self.window), MIN_OUTPUT)


class _Build:
    """One prompt as it is tokenised, counted until it is too long."""

    def __init__(self, guard: Guard, mode: Mode, max_tokens: int | None, limit: int) -> None:
        self._guard = guard
        self._mode: Mode = mode
        self._max_tokens = max_tokens
        self._limit = limit
        self.total = 0

    def refuse_by_bytes(self, messages: Sequence[Message], pinned: int) -> None:
        if self._mode == "turns":
            messages = [message for _, message in exchanges_of(messages, False)[-1]]
        least = pinned + self._guard.tokenizer.least_tokens(messages)
        if least > self._limit:
            raise self._error({"n_prompt_tokens_at_least": least})

    def count(self, ids: tuple[int, ...], *, all_counted: bool) -> None:
        self.total += len(ids)
        if self.total > self._limit:
            raise self._error({"n_prompt_tokens" if all_counted else "n_prompt_tokens_at_least": self.total})

    def prompt(self, head: Piece, exchanges: Sequence[Sequence[tuple[int, Message]]]) -> Prompt:
        """From the newest message back. In mode ``turns`` the exchanges before the newest don't count."""
        tokenizer = self._guard.tokenizer
        done: list[tuple[int, ...]] = []
        neutralised = head.neutralised
        left = sum(map(len, exchanges))
        for exchange in reversed(exchanges):
            pieces: list[tuple[int, ...]] = []
            for index, message in reversed(exchange):
                piece = tokenizer.message(message, f"messages[{index}]")
                neutralised += piece.neutralised
                pieces.append(piece.ids)
                left -= 1
                if self._mode == "reject" or not done:
                    self.count(piece.ids, all_counted=not left)
            done.append(tuple(token for ids in reversed(pieces) for token in ids))
        return Prompt(head.ids, tuple(reversed(done)) or ((),), tokenizer.open, neutralised)

    def _error(self, count: dict[str, int]) -> TokenLimitExceeded:
        needed = self._guard.window - self._limit
        return too_long(self._guard.window, self._mode, self._max_tokens, count, needed=needed)


def _system(messages: Sequence[Message]) -> str | None:
    return messages[0].content if messages[0].role == "system" else None


def exchanges_of(messages: Sequence[Message], first: bool) -> list[list[tuple[int, Message]]]:
    """Numbered messages by exchange: one ends with an answer. The head of a conversation is in none."""
    exchanges: list[list[tuple[int, Message]]] = []
    skip = 1 if first and _system(messages) is not None else 0
    for index, message in enumerate(messages[skip:], skip):
        if index == skip or messages[index - 1].role == "assistant":
            exchanges.append([])
        exchanges[-1].append((index, message))
    return exchanges
