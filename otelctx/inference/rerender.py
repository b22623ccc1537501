"""Conversations whose template is not concatenative: rendered and tokenised as a whole, each time.

What is dropped then is what the rendering gets shorter by, since the rest may be written differently without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from otelctx.errors import InvalidRequest, TokenLimitExceeded
from otelctx.inference.cut import fewest, quota
from otelctx.inference.overflow import MIN_OUTPUT, Mode, reserve_for, too_long
from otelctx.inference.prompt import Prompt, exchanges_of, system_of, without
from otelctx.inference.tokenizer import ChatTokenizer, Rendered
from otelctx.inference.turn import Message

__all__ = ["Rerender", "text_limit"]

_BYTES_PER_TOKEN: Final = 64


def text_limit(window: int) -> int:
    """Bytes of text that a session of ``window`` tokens may keep. Templates leave out what they like, so that the
    window itself is no bound."""
    return _BYTES_PER_TOKEN * window


@dataclass(frozen=True, slots=True)
class Rerender:
    """One rendering: ``max_tokens`` and ``mode`` as the request has them."""

    tokenizer: ChatTokenizer
    window: int
    max_tokens: int | None
    mode: Mode

    def alone(self, messages: Sequence[Message]) -> Prompt:
        """A conversation without a session. Raises as the guard does."""
        return self._prompt(tuple(messages), 0, session=False)

    def session(self, history: Sequence[tuple[str, str]], messages: Sequence[Message]) -> Prompt:
        """What a session holds, as (role, text), with ``messages`` added; raises as the guard does."""
        conversation = (*(Message(role, text) for role, text in history), *messages)
        prompt = self._prompt(conversation, len(history), session=True)
        kept = without(conversation, prompt.cut)
        head = self.tokenizer.fixed_head(system_of(kept), prompt.exchanges[0])
        ids = prompt.exchanges[0]
        return replace(
            prompt, head=ids[:head], exchanges=(ids[head:],), messages=tuple((m.role, m.content) for m in kept)
        )

    def _prompt(self, messages: tuple[Message, ...], since: int, *, session: bool) -> Prompt:
        tokenizer, window = self.tokenizer, self.window
        reserve = reserve_for(self.max_tokens, window)
        hard = window - min(reserve, MIN_OUTPUT)
        older = max(0, len(exchanges_of(messages, True)) - 1)
        droppable = older if self.mode != "reject" else 0
        least = self._most_text(messages, droppable) if session else 0
        full = tokenizer.render(messages, since)
        self._refuse_by_bytes(full, messages, since, droppable, hard)
        ids = tokenizer.tokens(full)
        total = len(ids)
        fits = total + reserve <= window or (total <= hard and not (session and older))
        if fits and not least:
            return Prompt((), (ids,), (), full.neutralised, earlier=older)
        if not droppable:
            raise self._error({"n_prompt_tokens": total}, window - hard if total > hard else reserve)

        @cache
        def shorter(count: int) -> tuple[int, ...]:
            return tokenizer.tokens(tokenizer.render(without(messages, count), max(0, since - _gone(messages, count))))

        goal = window * 3 // 4 if session else total - quota(total, window=window, reserve=reserve)
        count = max(least, 0 if fits else fewest(lambda n: len(shorter(n)), goal, droppable))
        kept = shorter(count)
        if len(kept) > hard:
            raise self._error({"n_prompt_tokens": total}, window - hard)
        return Prompt((), (kept,), (), full.neutralised, count, total - len(kept), older - count)

    def _refuse_by_bytes(
        self, full: Rendered, messages: tuple[Message, ...], since: int, droppable: int, hard: int
    ) -> None:
        """What is surely too long is not tokenised; where exchanges can go, only the newest counts."""
        tokenizer = self.tokenizer
        least = tokenizer.least_rendered(full)
        if least > hard and droppable:
            kept = without(messages, droppable)
            least = tokenizer.least_rendered(tokenizer.render(kept, max(0, since - _gone(messages, droppable))))
        if least > hard:
            raise self._error({"n_prompt_tokens_at_least": least}, self.window - hard)

    def _most_text(self, messages: tuple[Message, ...], droppable: int) -> int:
        """Exchanges that must go because the session may not keep so much text."""
        limit = text_limit(self.window)

        def size(count: int) -> int:
            return sum(len(message.content.encode()) for message in without(messages, count))

        if size(0) <= limit:
            return 0
        count = fewest(size, limit, droppable) if droppable else 0
        if size(count) > limit:
            raise InvalidRequest(
                f"a session keeps at most {limit} bytes of text; send less, or send the messages without a session",
                code="text_too_long",
                param="messages",
            )
        return count

    def _error(self, count: dict[str, int], needed: int) -> TokenLimitExceeded:
        return too_long(self.window, self.mode, self.max_tokens, count, needed=needed)


def _gone(messages: tuple[Message, ...], count: int) -> int:
    return len(messages) - len(without(messages, count))
