"""From a request, and the session that it continues, to the token ids that it adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, get_args

from otelctx.errors import InvalidRequest
from otelctx.inference.guard import Guard
from otelctx.inference.overflow import Mode
from otelctx.inference.prompt import Prompt
from otelctx.inference.turn import Message, TurnRequest, messages_of
from otelctx.sessions.record import SessionRecord

__all__ = ["Prompter"]

_MODES: Final = get_args(Mode)


class Prompter:
    """Tokenises what is new in a request. ``mode`` is what sessions do when their window is full; ``vocab`` is the
    number of token ids that the model knows, ``None`` if that is not to be checked here."""

    def __init__(self, guard: Guard, mode: Mode, vocab: int | None = None) -> None:
        self._guard = guard
        self._mode: Mode = mode
        self._vocab = vocab

    def check(self, request: TurnRequest) -> TurnRequest:
        """``request`` with its messages checked: what can be told before the session is there. Raises
        ``InvalidRequest`` and ``TokenLimitExceeded``."""
        if "" in request.stop:
            raise InvalidRequest("a stop string is not empty", code="invalid_value", param="stop")
        if request.when_full is not None and request.when_full not in _MODES:
            raise InvalidRequest(
                f"when_full must be one of {', '.join(_MODES)}, not {str(request.when_full)[:64]!r}",
                code="invalid_value",
                param="when_full",
            )
        if request.prompt is not None:
            return self._raw(request)
        request = replace(request, messages=messages_of(request.messages))
        if request.session is not None:
            self._refuse_names(request.messages)
            self._guard.refuse_by_bytes(request.messages, request.max_tokens, request.mode(self._mode))
        return request

    async def prompt(self, request: TurnRequest, record: SessionRecord | None) -> Prompt:
        """The ids by their parts; ``record`` is the leased session, if there is one. Raises ``InvalidRequest`` and
        ``TokenLimitExceeded``."""
        mode = request.mode(self._mode)
        if request.prompt is not None:
            if isinstance(request.prompt, str):
                return await self._guard.araw(request.prompt, request.max_tokens)
            return self._guard.ids(request.prompt, request.max_tokens)
        if record is None:
            return await self._guard.afitted(request.messages, request.max_tokens, mode)
        first = record.turns == 0
        messages = request.messages if first else _without_head(request.messages, record.system)
        if not self._guard.tokenizer.concatenative:
            return await self._guard.arerendered(record.messages, messages, request.max_tokens, mode)
        return await self._guard.aprompt(
            messages, request.max_tokens, mode=mode, first=first, pinned=record.window.pinned
        )

    def _refuse_names(self, messages: Sequence[Message]) -> None:
        """A session keeps no names, so that a later turn would have the model read another conversation."""
        if self._guard.tokenizer.names(messages):
            index = next(index for index, message in enumerate(messages) if message.name)
            raise InvalidRequest(
                f"messages[{index}].name: a session keeps no names; send the messages without a session, or no name",
                code="unsupported_parameter",
                param=f"messages[{index}].name",
            )

    def _raw(self, request: TurnRequest) -> TurnRequest:
        if request.session is not None:
            raise InvalidRequest(
                "a session continues a conversation: send messages, or the prompt without a session",
                code="session_unsupported",
                param="session",
            )
        if not request.prompt:
            raise InvalidRequest("prompt must not be empty", code="empty_string", param="prompt")
        if not isinstance(request.prompt, str):
            self._in_range(request.prompt)
        return request

    def _in_range(self, ids: Sequence[int]) -> None:
        most = 2**31 - 1 if self._vocab is None else self._vocab - 1
        for index, token in enumerate(ids):
            if type(token) is not int or not 0 <= token <= most:
                raise InvalidRequest(
                    f"prompt[{index}] must be a token id from 0 to {most}, not {str(token)[:64]}",
                    code="value_out_of_range",
                    param=f"prompt[{index}]",
                )


def _without_head(messages: tuple[Message, ...], system: str | None) -> tuple[Message, ...]:
    """A later turn may say the session's system prompt again; it is there already."""
    if messages[0].role != "system" or messages[0].content != system:
        return messages
    if len(messages) == 1:
        raise InvalidRequest("there is nothing new in messages", code="empty_array", param="messages")
    return messages[1:]
