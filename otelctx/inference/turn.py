"""One request to the engine, and what comes of it: values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from otelctx.context.state import Window
from otelctx.errors import InvalidRequest
from otelctx.inference.overflow import Mode
from otelctx.inference.params import Params

__all__ = [
    "ROLES",
    "Chunk",
    "FinishReason",
    "Limit",
    "Message",
    "Outcome",
    "TurnRequest",
    "TurnResult",
    "Usage",
    "check_max_tokens",
    "check_text",
    "messages_of",
]

FinishReason = Literal["stop", "length"]
Limit = Literal["output", "context", "session", "deadline", "memory"]
Outcome = Literal["completed", "length", "cancelled", "deadline", "rejected", "shed", "oom", "error"]

# A role as OpenAI's API has it → the role that chat templates know.
ROLES: Final[Mapping[str, str]] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``role`` is ``system``, ``user`` or ``assistant``; ``content`` is text without lone surrogates, and
    so is ``name``, of a participant: it is read by the model if the chat template writes names."""

    role: str
    content: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What an engine is asked for.

    ``session``: ``None`` means that ``messages`` are the whole history and nothing is kept; an id means that they are
    added to that session of ``owner``'s. ``prompt``: text or token ids to continue as they are, instead of ``messages``
    and without a session. ``when_full``: what happens if it does not fit, ``None`` for the engine's own way with
    sessions and for ``reject`` without one. ``max_tokens``: at least 1, ``None`` for as many as the window allows.
    ``deadline``: seconds from admission after which the answer ends where it is. ``response_id``: what its client knows
    the answer by.
    """

    messages: tuple[Message, ...]
    session: str | None = None
    owner: str = "anonymous"
    max_tokens: int | None = None
    params: Params = field(default_factory=Params)
    stop: tuple[str, ...] = ()
    stream: bool = False
    priority: int = 0
    deadline: float | None = None
    model: str | None = None
    prompt: str | tuple[int, ...] | None = None
    when_full: Mode | None = None
    response_id: str | None = None

    def mode(self, sessions: Mode) -> Mode:
        """What happens if the turn does not fit; ``sessions`` is the engine's own way with sessions."""
        if self.when_full is not None:
            return self.when_full
        return sessions if self.session is not None else "reject"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one turn.

    ``prompt_tokens`` were in context when the answer began, ``cached_tokens`` of them were not computed again, and
    ``dropped_tokens`` had been removed to make room: prompt + dropped = rendered.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended.

    ``limit`` says which limit ended the answer, if one did; ``cut`` what it was cut inside of; ``window`` is the
    window after the turn; ``time_to_first_token`` is in seconds from admission, ``None`` without a token; ``degraded``
    is what pressure changed about it: ``max_tokens``, if the answer was given less room than was asked for.
    """

    finish_reason: FinishReason
    outcome: Outcome
    usage: Usage
    limit: Limit | None = None
    cut: str | None = None
    window: Window | None = None
    time_to_first_token: float | None = None
    session: str | None = None
    degraded: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the answer's text. The last chunk, and only it, has ``finish_reason`` and ``result``; its text may
    be empty.
    """

    text: str
    finish_reason: FinishReason | None = None
    result: TurnResult | None = None


def messages_of(values: Iterable[Message | Mapping[str, Any]]) -> tuple[Message, ...]:
    """``values`` as checked messages; mappings have ``role``, ``content`` and perhaps ``name`` as in OpenAI's API.

    Raises :class:`~otelctx.errors.InvalidRequest` whose ``param`` names the place: no messages, unknown role, content
    or a name that is no text, a lone surrogate.
    """
    found = tuple(_message(value, f"messages[{index}]") for index, value in enumerate(values))
    if not found:
        raise InvalidRequest("messages must not be empty", code="empty_array", param="messages")
    return found


def _message(value: Message | Mapping[str, Any], at: str) -> Message:
    given: Mapping[str, Any] = (
        {"role": value.role, "content": value.content, "name": value.name} if isinstance(value, Message) else value
    )
    role, content = given.get("role"), given.get("content")
    known = ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        raise InvalidRequest(
            f"{at}.role {str(role)[:64]!r} is unknown; it must be one of {', '.join(ROLES)}",
            code="unknown_role",
            param=f"{at}.role",
        )
    if not isinstance(content, str):
        raise InvalidRequest(f"{at}.content must be a string", code="invalid_type", param=f"{at}.content")
    check_text(content, f"{at}.content")
    name = given.get("name")
    if name is not None:
        if not isinstance(name, str):
            raise InvalidRequest(f"{at}.name must be a string", code="invalid_type", param=f"{at}.name")
        check_text(name, f"{at}.name")
    return Message(known, content, name)


def check_text(text: str, at: str) -> None:
    """Raise :class:`~otelctx.errors.InvalidRequest` for a lone surrogate in ``text``, which is what stands ``at``."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{at} has a lone surrogate (half a character) at position {error.start}",
                code="invalid_unicode",
                param=at,
            ) from None


def check_max_tokens(value: int | None) -> None:
    """Raise :class:`~otelctx.errors.InvalidRequest` unless ``value`` is ``None`` or at least 1. There is no maximum:
    what is too much for the window is the window's to say."""
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidRequest(
            f"max_tokens must be an integer of at least 1, not {value!r}", code="value_out_of_range", param="max_tokens"
        )
