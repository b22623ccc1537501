"""A completion request of OpenAI's API → the turns that the engine is asked for. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from otelctx.inference.turn import TurnRequest
from otelctx.serving import fields, parameters, unsupported
from otelctx.serving.messages import messages
from otelctx.serving.options import options
from otelctx.serving.prompts import prompts

__all__ = ["Caller", "CompletionRequest", "chat", "text"]

_CHAT_FIELDS: Final = parameters.COMMON | parameters.CHAT_ONLY.keys() | {"messages", "model", "otelctx"}
_TEXT_FIELDS: Final = parameters.COMMON | {"model", "otelctx", "prompt"}
_TEXT_TOKENS: Final = 16  # OpenAI's default for text completions, and only for them


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request's context and credentials say of who asks. ``session`` is the context's ``session.id``: it never
    makes a request a session's, but the body must not contradict it. ``timeout`` is the seconds for which the caller
    waits: the body's own can only be shorter."""

    owner: str
    session: str | None = None
    priority: int = 0
    timeout: float | None = None

    def within(self, timeout: float | None) -> float | None:
        """Seconds after which the answer ends, where the body says ``timeout``."""
        return min((t for t in (timeout, self.timeout) if t is not None), default=None)


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """``turns`` for the engine, one a choice, and what only the answer's form depends on."""

    model: str
    turns: tuple[TurnRequest, ...]
    stream: bool
    include_usage: bool


def chat(body: Mapping[str, Any], caller: Caller) -> CompletionRequest:
    """Check the body of a chat completion. Raises :class:`~otelctx.errors.InvalidRequest` that names the parameter."""
    model = parameters.model(body)
    unsupported.check(body, _CHAT_FIELDS, unsupported.CHAT)
    stream = fields.boolean(body, "stream")
    own = options(body, caller.session, sessions=True)
    turn = TurnRequest(
        messages=messages(body.get("messages")),
        session=own.session,
        owner=caller.owner,
        max_tokens=parameters.max_tokens(body),
        params=parameters.params(body),
        stop=parameters.stop(body),
        stream=stream,
        priority=caller.priority,
        deadline=caller.within(own.timeout),
        model=model,
        when_full=own.when_full,
    )
    return CompletionRequest(model, (turn,), stream, parameters.include_usage(body, stream))


def text(body: Mapping[str, Any], caller: Caller) -> CompletionRequest:
    """Check the body of a text completion: a turn for each prompt. Raises :class:`~otelctx.errors.InvalidRequest`."""
    model = parameters.model(body)
    unsupported.check(body, _TEXT_FIELDS, unsupported.TEXT)
    stream = fields.boolean(body, "stream")
    own = options(body, caller.session, sessions=False)
    limit, params, stop = parameters.max_tokens(body), parameters.params(body), parameters.stop(body)
    turns = tuple(
        TurnRequest(
            messages=(),
            owner=caller.owner,
            max_tokens=_TEXT_TOKENS if limit is None else limit,
            params=params,
            stop=stop,
            stream=stream,
            priority=caller.priority,
            deadline=caller.within(own.timeout),
            model=model,
            prompt=prompt,
            when_full=own.when_full,
        )
        for prompt in prompts(body.get("prompt"))
    )
    return CompletionRequest(model, turns, stream, parameters.include_usage(body, stream))
