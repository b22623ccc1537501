"""A chat completion request of OpenAI's API → the turn that the engine is asked for. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from otelctx.errors import InvalidRequest
from otelctx.inference.sampling import Params
from otelctx.inference.turn import TurnRequest
from otelctx.serving import fields, unsupported
from otelctx.serving.messages import messages

__all__ = ["MAX_TOKENS", "ChatRequest", "chat"]

# Far beyond any window; it keeps the number within what telemetry can carry.
MAX_TOKENS: Final = 2**31 - 1
_INT64: Final = (-(2**63), 2**63 - 1)
_MAX_STOPS: Final = 4
_TOKEN_FIELDS: Final = ("max_tokens", "max_completion_tokens")
_MAX_SESSION_BYTES: Final = 1024
_KNOWN: Final = frozenset(
    {
        "frequency_penalty", "max_completion_tokens", "max_tokens", "messages", "model", "otelctx", "presence_penalty",
        "seed", "stop", "stream", "stream_options", "temperature", "top_k", "top_p",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """``turn`` for the engine, and what only the answer's form depends on."""

    model: str
    turn: TurnRequest
    include_usage: bool


def chat(body: Mapping[str, Any], *, owner: str, context_session: str | None = None, priority: int = 0) -> ChatRequest:
    """Check ``body`` and take it over.

    ``context_session`` is the session id of the request's context; it never makes a request a session's, but it must
    not contradict the body. Raises :class:`~otelctx.errors.InvalidRequest` that names the parameter.
    """
    model = body.get("model")
    if model is None:
        raise InvalidRequest("model is required", code="missing_required_parameter", param="model")
    model = fields.text(model, "model")
    unsupported.check(body, _KNOWN)
    stream = fields.boolean(body, "stream")
    turn = TurnRequest(
        messages=messages(body.get("messages")),
        session=_session(body, context_session),
        owner=owner,
        max_tokens=_max_tokens(body),
        params=_params(body),
        stop=_stop(body.get("stop")),
        stream=stream,
        priority=priority,
        model=model,
    )
    return ChatRequest(model, turn, _include_usage(body, stream))


def _session(body: Mapping[str, Any], context_session: str | None) -> str | None:
    options = fields.mapping(body, "otelctx")
    if options is None:
        return None
    if unknown := options.keys() - {"session", "mode"}:
        raise InvalidRequest(
            f"unknown parameter: otelctx.{min(unknown)[:64]!r}", code="unknown_parameter", param="otelctx"
        )
    session = fields.text(options.get("session"), "otelctx.session")
    if not 0 < len(session.encode()) <= _MAX_SESSION_BYTES:
        raise InvalidRequest(
            f"otelctx.session must be 1 to {_MAX_SESSION_BYTES} bytes long",
            code="invalid_session",
            param="otelctx.session",
        )
    if options.get("mode") != "append":
        raise InvalidRequest(
            'otelctx.mode must be "append": the messages are added to the session',
            code="invalid_mode",
            param="otelctx.mode",
        )
    if context_session is not None and context_session != session:
        raise InvalidRequest(
            "otelctx.session is not the session.id that the request's context carries",
            code="session_mismatch",
            param="otelctx.session",
        )
    return session


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    # Huge values are fine: the window is the limit. They are clipped, not refused.
    clipped = {n: min(v, MAX_TOKENS) if type(v) is int else v for n, v in body.items() if n in _TOKEN_FIELDS}
    old, new = (fields.integer(clipped, name, 1, MAX_TOKENS) for name in _TOKEN_FIELDS)
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            "max_tokens and max_completion_tokens contradict each other", code="invalid_request", param="max_tokens"
        )
    return old if new is None else new


def _params(body: Mapping[str, Any]) -> Params:
    given: dict[str, Any] = {
        "temperature": fields.number(body, "temperature", 0, 2),
        "top_p": fields.number(body, "top_p", 0, 1),
        "top_k": fields.integer(body, "top_k", 0, MAX_TOKENS),
        "seed": fields.integer(body, "seed", *_INT64),
        "frequency_penalty": fields.number(body, "frequency_penalty", -2, 2),
        "presence_penalty": fields.number(body, "presence_penalty", -2, 2),
    }
    return Params(**{name: value for name, value in given.items() if value is not None})


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    items: list[object] = value if isinstance(value, list) else [value]
    if len(items) > _MAX_STOPS:
        raise InvalidRequest(f"stop takes up to {_MAX_STOPS} strings", code="array_above_max_length", param="stop")
    stops = tuple(fields.text(item, "stop") for item in items)
    if "" in stops:
        raise InvalidRequest("a stop string is not empty", code="invalid_value", param="stop")
    return stops


def _include_usage(body: Mapping[str, Any], stream: bool) -> bool:
    options = fields.mapping(body, "stream_options")
    if options is None:
        return False
    if not stream:
        raise InvalidRequest(
            "stream_options is only allowed when stream is true", code="invalid_request", param="stream_options"
        )
    return fields.boolean(options, "include_usage", at="stream_options.")
