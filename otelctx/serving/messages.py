"""The messages of a chat request: roles, and content as text or as parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from otelctx.errors import InvalidRequest
from otelctx.inference.turn import ROLES, Message
from otelctx.serving.fields import shown, text, wrong

__all__ = ["SCHEMA", "messages"]

_PARTS: Final = {"text": "text", "refusal": "refusal"}  # part's type → its field
_TOOL_FIELDS: Final = ("tool_calls", "function_call")
_UNUSED: Final[tuple[Any, ...]] = (None, [], {})  # values that clients send of fields that they don't use
# ``annotations`` say where a part of an answer has come from, and nothing to the model.
_FIELDS: Final = frozenset(("role", "content", "name", "refusal", "annotations", *_TOOL_FIELDS))


def _schema(roles: list[str], *, empty: bool) -> dict[str, Any]:
    """JSON Schema of a message of one of ``roles``; ``empty`` says whether it may go without content."""
    parts = [
        {
            "type": "object",
            "properties": {"type": {"const": kind}, field: {"type": "string"}},
            "required": ["type", field],
        }
        for kind, field in _PARTS.items()
    ]
    contents: list[dict[str, Any]] = [
        {"type": "string"},
        {"type": "array", "items": {"anyOf": parts}, "minItems": 1},
        *([{"type": "null"}] if empty else []),
    ]
    return {
        "type": "object",
        "properties": {
            "role": {"enum": roles},
            "content": {"anyOf": contents},
            "name": {"type": ["string", "null"], "description": "Read by the model if its chat template writes names."},
            "refusal": {"type": ["string", "null"]} if empty else {"enum": [*_UNUSED]},
            "annotations": {"description": "Has no effect."},
            **{field: {"enum": [*_UNUSED], "description": "No tools here."} for field in _TOOL_FIELDS},
        },
        "required": ["role"] if empty else ["role", "content"],
        "additionalProperties": {"enum": [*_UNUSED]},
    }


SCHEMA: Final[dict[str, Any]] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "anyOf": [
            _schema([role for role in ROLES if role != "assistant"], empty=False),
            _schema(["assistant"], empty=True),
        ]
    },
}


def messages(value: object) -> tuple[Message, ...]:
    """Check and take over ``messages``. Raises :class:`~otelctx.errors.InvalidRequest` that names the place."""
    if value is None:
        raise InvalidRequest("messages is required", code="missing_required_parameter", param="messages")
    if type(value) is not list:
        raise wrong("messages", "an array", value)
    if not value:
        raise InvalidRequest("messages must not be empty", code="empty_array", param="messages")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))


def _message(item: object, at: str) -> Message:
    if type(item) is not dict:
        raise wrong(at, "an object", item)
    role = _role(item.get("role"), f"{at}.role")
    for field in _TOOL_FIELDS:
        if item.get(field) not in _UNUSED:
            raise InvalidRequest(
                f"{at}.{field}: this server does not call tools", code="unsupported_parameter", param=f"{at}.{field}"
            )
    if not item.keys() <= _FIELDS:
        _refuse_unknown(item, at)
    name = item.get("name")
    content = _content(item.get("content"), role, f"{at}.content")
    refusal = item.get("refusal")
    if refusal not in _UNUSED:
        content = _refused(content, text(refusal, f"{at}.refusal"), role, f"{at}.refusal")
    if name is None:
        return Message(role, content)
    return Message(role, content, name=text(name, f"{at}.name"))


def _refuse_unknown(item: Mapping[str, Any], at: str) -> None:
    """Fields that others give a meaning, such as ``prefix``, would be expected to have it."""
    for field in item.keys() - _FIELDS:
        if item[field] not in _UNUSED:
            name = f"{at}.{shown(field)}"
            raise InvalidRequest(f"unknown parameter: {name}; leave it out", code="unknown_parameter", param=name)


def _refused(content: str, refusal: str, role: str, at: str) -> str:
    """An answer that was one, or ended in one, as the API tells it: beside the content."""
    if role != "assistant":
        raise InvalidRequest(f"{at}: only an assistant refuses", code="unsupported_parameter", param=at)
    return "\n".join(filter(None, (content, refusal)))


def _role(value: object, at: str) -> str:
    role = text(value, at)
    found = ROLES.get(role)
    if found is not None:
        return found
    if role in ("tool", "function"):
        raise InvalidRequest(f"{at}: this server does not call tools", code="unsupported_value", param=at)
    known = ", ".join(ROLES)
    raise InvalidRequest(f"{at} {role[:64]!r} is unknown; it must be one of {known}", code="unknown_role", param=at)


def _content(value: object, role: str, at: str) -> str:
    if value is None and role == "assistant":
        return ""
    if type(value) is list:
        if not value:
            raise InvalidRequest(f"{at} must not be empty", code="empty_array", param=at)
        # Parts are separate blocks of text, so they don't run into each other.
        return "\n".join(_part(part, f"{at}[{index}]") for index, part in enumerate(value))
    if type(value) is not str:
        raise wrong(at, "a string or an array of content parts", value)
    return text(value, at)


def _part(part: object, at: str) -> str:
    if type(part) is not dict:
        raise wrong(at, "an object", part)
    field = _PARTS.get(_kind(part, at))
    if field is None:
        raise InvalidRequest(
            f"{at}.type {part['type'][:64]!r} is not supported; this server takes text",
            code="unsupported_value",
            param=f"{at}.type",
        )
    return text(part.get(field), f"{at}.{field}")


def _kind(part: Mapping[str, Any], at: str) -> str:
    return text(part.get("type"), f"{at}.type")
