"""From a request, and the session that it continues, to the token ids that it adds."""

from __future__ import annotations

from otelctx.errors import InvalidRequest
from otelctx.inference.guard import Guard, Prompt
from otelctx.inference.overflow import Mode
from otelctx.inference.turn import Message, TurnRequest
from otelctx.sessions.record import SessionRecord

__all__ = ["Prompter"]


class Prompter:
    """Tokenises what is new in a request. ``mode`` is what sessions do when their window is full."""

    def __init__(self, guard: Guard, mode: Mode) -> None:
        self._guard = guard
        self._mode = mode

    def check(self, request: TurnRequest) -> None:
        """What can be told before the session is there. Raises ``InvalidRequest`` and ``TokenLimitExceeded``."""
        if "" in request.stop:
            raise InvalidRequest("a stop string is not empty", code="invalid_value", param="stop")
        if request.session is None:
            return
        if not self._guard.tokenizer.concatenative:
            raise InvalidRequest(
                "this model's chat template depends on the whole conversation: send all of it, without a session",
                code="session_unsupported",
                param="session",
            )
        self._guard.refuse_by_bytes(request.messages, request.max_tokens, self._mode)

    async def prompt(self, request: TurnRequest, record: SessionRecord | None) -> Prompt:
        """The ids by their parts; ``record`` is the leased session, if there is one. Raises ``InvalidRequest`` and
        ``TokenLimitExceeded``."""
        if record is None:
            return await self._guard.aprompt(request.messages, request.max_tokens)
        first = record.turns == 0
        return await self._guard.aprompt(
            request.messages if first else _without_head(request.messages, record.system),
            request.max_tokens,
            mode=self._mode,
            first=first,
            pinned=record.window.pinned,
        )


def _without_head(messages: tuple[Message, ...], system: str | None) -> tuple[Message, ...]:
    """A later turn may say the session's system prompt again; it is there already."""
    if messages[0].role != "system" or messages[0].content != system:
        return messages
    if len(messages) == 1:
        raise InvalidRequest("there is nothing new in messages", code="empty_array", param="messages")
    return messages[1:]
