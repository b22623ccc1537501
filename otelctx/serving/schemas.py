"""JSON Schemas of what goes in and out, by name. Requests are made from the tables that read them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from otelctx.inference.turn import FinishReason, Limit
from otelctx.serving import messages, options, parameters, prompts, session_schemas, unsupported

__all__ = ["ref", "schemas"]

Json = dict[str, Any]

_COUNT: Final[Json] = {"type": "integer", "minimum": 0}
_STRING: Final[Json] = {"type": "string"}
_NOTHING: Final[Json] = {"type": "null"}
_REASON: Final[Json] = {"enum": list(get_args(FinishReason))}
_PIECE_REASON: Final[Json] = {"enum": [*get_args(FinishReason), None]}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def schemas(model: str) -> dict[str, Json]:
    """All components of a server that has ``model``."""
    return {
        "ChatCompletionRequest": _request(
            model, {"messages": messages.SCHEMA}, unsupported.CHAT, sessions=True, newer=True
        ),
        "CompletionRequest": _request(model, {"prompt": prompts.SCHEMA}, unsupported.TEXT, sessions=False),
        **_ANSWERS,
    }


def _request(
    model: str, own: Mapping[str, Json], inert: Mapping[str, unsupported.Inert], *, sessions: bool, newer: bool = False
) -> Json:
    known = {**parameters.SCHEMAS, **(parameters.CHAT_ONLY if newer else {})}
    needed = {"model": {"enum": [model]}, **own}
    stream = {"properties": {"stream": {"const": True}}, "required": ["stream"]}
    found: Json = {
        "type": "object",
        "properties": {
            **needed,
            **known,
            "otelctx": options.schema(sessions=sessions),
            **{name: {**parameter.schema, "description": "Has no effect."} for name, parameter in inert.items()},
        },
        "required": list(needed),
        "additionalProperties": False,
        "if": {"not": stream},
        "then": {"properties": {"stream_options": _NOTHING}},
    }
    if newer:
        # Both may be sent if they are equal, which no schema can say.
        found["anyOf"] = [{"properties": {name: _NOTHING}} for name in ("max_tokens", "max_completion_tokens")]
    return found


def _object(properties: Mapping[str, Json], *, optional: tuple[str, ...] = (), **more: Any) -> Json:
    needed = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": needed, **more}


def _maybe(schema: Json) -> Json:
    return {"anyOf": [schema, _NOTHING]}


def _answer(kind: str, choice: Json, *, chunk: bool = False) -> Json:
    """The object of an answer or of a chunk of it, with choices of the schema ``choice``."""
    own: dict[str, Json] = {
        "id": _STRING,
        "object": {"const": kind},
        "created": _COUNT,
        "model": _STRING,
        "choices": {"type": "array", "items": choice},
        "usage": _maybe(ref("Usage")) if chunk else ref("Usage"),
        "otelctx": ref("Otelctx"),
    }
    return _object(own, optional=("usage", "otelctx") if chunk else ())


def _choice(own: Mapping[str, Json], reason: Json) -> Json:
    return _object({"index": _COUNT, **own, "logprobs": _NOTHING, "finish_reason": reason})


_MESSAGE: Final = _object({"role": {"const": "assistant"}, "content": _STRING, "refusal": _NOTHING})
_DELTA: Final = {**_MESSAGE, "required": []}
_OTELCTX: Final = _object(
    {
        "session": {"type": ["string", "null"], "description": "The session that the turn was added to."},
        "window": {**_maybe(ref("Window")), "description": "The window after the turn; null with several prompts."},
        "dropped": {**_COUNT, "description": "Tokens removed from the prompt to make it fit."},
        "reused": {**_COUNT, "description": "Tokens of the prompt that were not computed again."},
        "limit": {"enum": [*get_args(Limit), None], "description": "Which limit ended the answer."},
        "cut": {"type": ["string", "null"], "description": "The structure that this cut: json, code, utf8."},
        "degraded": {"type": ["string", "null"], "description": "What pressure took away: max_tokens."},
        "ack": {
            "type": ["string", "null"],
            "description": "In a stream: what an `otelctx-ack` header would have said at its end.",
        },
    }
)
_WINDOW: Final = _object(
    {
        "used": {**_COUNT, "description": "Tokens."},
        "limit": {**_COUNT, "description": "Tokens."},
        "evicted": {**_COUNT, "description": "Tokens that have left it, ever."},
        "level": {"type": "integer", "minimum": 0, "maximum": 4, "description": "Pressure on the server."},
        "generation": _COUNT,
        "version": _COUNT,
    }
)
_ERROR: Final = _object(
    {
        "message": {**_STRING, "description": "What is wrong, and what to do."},
        "type": {"enum": ["invalid_request_error", "server_error"]},
        "param": {"type": ["string", "null"], "description": "Which part of the request."},
        "code": {"type": ["string", "null"]},
        "n_prompt_tokens": _COUNT,
        "n_prompt_tokens_at_least": _COUNT,
        "max_context": _COUNT,
        "max_new_tokens_requested": {"type": ["integer", "null"]},
        "max_new_tokens_allowed": _COUNT,
        "policy": _STRING,
    },
    optional=(
        "n_prompt_tokens",
        "n_prompt_tokens_at_least",
        "max_context",
        "max_new_tokens_requested",
        "max_new_tokens_allowed",
        "policy",
    ),
)
_MODEL: Final = _object(
    {
        "id": _STRING,
        "object": {"const": "model"},
        "created": _COUNT,
        "owned_by": _STRING,
        "max_model_len": {**_COUNT, "description": "The window in effect, in tokens."},
        "otelctx": _object({"window": _COUNT, "model_max": _COUNT}),
    }
)
_ANSWERS: Final[Mapping[str, Json]] = {
    "ChatCompletion": _answer("chat.completion", _choice({"message": _MESSAGE}, _REASON)),
    "ChatCompletionChunk": _answer("chat.completion.chunk", _choice({"delta": _DELTA}, _PIECE_REASON), chunk=True),
    "Completion": _answer("text_completion", _choice({"text": _STRING}, _REASON)),
    "CompletionChunk": _answer("text_completion", _choice({"text": _STRING}, _PIECE_REASON), chunk=True),
    "Usage": _object(
        {
            "prompt_tokens": {**_COUNT, "description": "In context when the answer began."},
            "completion_tokens": _COUNT,
            "total_tokens": _COUNT,
            "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
        }
    ),
    "Otelctx": _OTELCTX,
    "Window": _WINDOW,
    "Error": _object({"error": _ERROR}),
    "Model": _MODEL,
    "Models": _object({"object": {"const": "list"}, "data": {"type": "array", "items": ref("Model")}}),
    **session_schemas.SCHEMAS,
    "Health": _object(
        {"status": {"enum": ["ok", "broken", "ready", "not ready"]}, "model": _STRING}, optional=("model",)
    ),
    "Document": {"type": "object", "description": "This document."},
}
