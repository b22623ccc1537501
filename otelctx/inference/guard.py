"""The token limit, enforced before the model is touched.

Bounds from the length in bytes come first where the tokenizer allows them: a text of two megabytes is refused without
tokenising it. What remains is tokenised exactly, from the newest message back, and no further than the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from otelctx.errors import ConfigError, TokenLimitExceeded
from otelctx.inference.cut import cut
from otelctx.inference.overflow import MIN_OUTPUT, Mode, reserve_for, too_long
from otelctx.inference.prompt import Prompt, exchanges_of, system_of
from otelctx.inference.rerender import Rerender
from otelctx.inference.tokenizer import ChatTokenizer, Piece, SpecialTokens
from otelctx.inference.turn import Message, check_max_tokens, check_text, messages_of

__all__ = ["Guard", "Prompt", "exchanges_of"]

# Characters up to which tokenising takes well under a millisecond, so that a thread would cost more than it saves.
_INLINE: Final = 8_000


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
        if not self.tokenizer.concatenative or (first and self.tokenizer.names(messages)):
            return Rerender(self.tokenizer, self.window, max_tokens, mode).alone(messages)
        head = self.tokenizer.head(system_of(messages)) if first else Piece(())
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
        return await _off_loop(call, _size(messages))

    def fitted(self, messages: Sequence[Message], max_tokens: int | None, mode: Mode) -> Prompt:
        """The ids of a conversation without a session, its oldest exchanges left out as ``mode`` has it. Raises as
        :meth:`admit`."""
        prompt = self.prompt(messages, max_tokens, mode=mode)
        if mode == "reject" or prompt.cut:
            return prompt
        *turns, new = [len(exchange) for exchange in prompt.exchanges]
        count = cut(
            window=self.window,
            head=len(prompt.head),
            turns=turns,
            new=new + len(prompt.open),
            reserve=reserve_for(max_tokens, self.window),
        )
        if not count:
            return prompt
        return replace(prompt, exchanges=prompt.exchanges[count:], cut=count, dropped=sum(turns[:count]))

    async def afitted(self, messages: Sequence[Message], max_tokens: int | None, mode: Mode) -> Prompt:
        """:meth:`fitted`, in a thread if the messages are long."""
        return await _off_loop(partial(self.fitted, messages, max_tokens, mode), _size(messages))

    async def arerendered(
        self, history: Sequence[tuple[str, str]], messages: Sequence[Message], max_tokens: int | None, mode: Mode
    ) -> Prompt:
        """All of a session's conversation with ``messages`` added, where the template depends on all of it; in a thread
        if it is long. Raises as :meth:`admit`."""
        check_max_tokens(max_tokens)
        call = partial(Rerender(self.tokenizer, self.window, max_tokens, mode).session, history, messages)
        return await _off_loop(call, sum(len(text) for _, text in history) + _size(messages))

    async def araw(self, text: str, max_tokens: int | None) -> Prompt:
        """A text to go on with as it is, after what the tokenizer begins a text with; in a thread if it is long.
        Special tokens in it are text. Raises as :meth:`admit`."""
        check_max_tokens(max_tokens)
        return await _off_loop(partial(self._raw, text, max_tokens), len(text))

    def ids(self, ids: Sequence[int], max_tokens: int | None) -> Prompt:
        """Token ids to go on with as they are. Raises :class:`~otelctx.errors.TokenLimitExceeded`."""
        check_max_tokens(max_tokens)
        limit = self._limit(max_tokens)
        if len(ids) > limit:
            count = {"n_prompt_tokens": len(ids)}
            raise too_long(self.window, "reject", max_tokens, count, "prompt", self.window - limit)
        return Prompt((), (tuple(ids),), ())

    def _raw(self, text: str, max_tokens: int | None) -> Prompt:
        check_text(text, "prompt")
        tokenizer, limit = self.tokenizer, self._limit(max_tokens)
        least = 0 if tokenizer.bounds is None else tokenizer.bounds.least((text,))
        count = {"n_prompt_tokens_at_least": least}
        if least <= limit:
            piece = tokenizer.text(text)
            ids = (*tokenizer.leading, *piece.ids)
            if len(ids) <= limit:
                return Prompt(tokenizer.leading, (piece.ids,), (), piece.neutralised)
            count = {"n_prompt_tokens": len(ids)}
        raise too_long(self.window, "reject", max_tokens, count, "prompt", self.window - limit)

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
        if self._mode != "reject":
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


async def _off_loop(call: Callable[[], Prompt], size: int) -> Prompt:
    """``call()``, in a thread if the ``size`` of its text in characters makes that worth it."""
    return call() if size <= _INLINE else await asyncio.to_thread(call)


def _size(messages: Sequence[Message]) -> int:
    return sum(len(message.content) + len(message.name or "") for message in messages)
