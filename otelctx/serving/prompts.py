"""The ``prompt`` of a text completion: a text or token ids, or several of them. Pure."""

from __future__ import annotations

from typing import Any, Final

from otelctx.errors import InvalidRequest
from otelctx.serving.fields import text, wrong

__all__ = ["SCHEMA", "prompts"]

_MAX_PROMPTS: Final = 20  # what LangChain sends at once by default; each is a turn of its own
_MAX_ID: Final = 2**31 - 1
_WANTED: Final = "a string, an array of token ids, or an array of either"
_TEXT: Final[dict[str, Any]] = {"type": "string", "minLength": 1}
_IDS: Final[dict[str, Any]] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": _MAX_ID},
    "minItems": 1,
}
SCHEMA: Final[dict[str, Any]] = {
    "description": f"Text or token ids to go on from, as they are. Up to {_MAX_PROMPTS} at once: one choice each.",
    "anyOf": [
        _TEXT,
        _IDS,
        {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": _MAX_PROMPTS},
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": _MAX_PROMPTS},
    ],
}

Prompt = str | tuple[int, ...]


def prompts(value: object) -> tuple[Prompt, ...]:
    """Each prompt by itself. Raises :class:`~otelctx.errors.InvalidRequest` that names the place."""
    if value is None:
        raise InvalidRequest("prompt is required", code="missing_required_parameter", param="prompt")
    if type(value) is str:
        return (_text(value, "prompt"),)
    if type(value) is not list:
        raise wrong("prompt", _WANTED, value)
    if not value:
        raise InvalidRequest("prompt must not be empty", code="empty_array", param="prompt")
    first = type(value[0])
    if first not in (str, list):
        return (_ids(value, "prompt"),)
    if len(value) > _MAX_PROMPTS:
        raise InvalidRequest(
            f"prompt takes up to {_MAX_PROMPTS} prompts: send the rest in another request",
            code="array_above_max_length",
            param="prompt",
        )
    read = _text if first is str else _ids
    return tuple(read(item, f"prompt[{index}]") for index, item in enumerate(value))


def _text(value: object, at: str) -> str:
    found = text(value, at)
    if not found:
        raise InvalidRequest(f"{at} must not be empty", code="empty_string", param=at)
    return found


def _ids(value: object, at: str) -> tuple[int, ...]:
    if type(value) is not list:
        raise wrong(at, "an array of token ids", value)
    if not value:
        raise InvalidRequest(f"{at} must not be empty", code="empty_array", param=at)
    kinds = set(map(type, value))
    if float in kinds:  # JSON has only one kind of number
        value = [int(item) if type(item) is float and item.is_integer() else item for item in value]
        kinds = set(map(type, value))
    if kinds != {int}:
        index, item = next((i, item) for i, item in enumerate(value) if type(item) is not int)
        raise wrong(f"{at}[{index}]", "a token id (an integer)", item)
    if min(value) < 0 or max(value) > _MAX_ID:
        raise InvalidRequest(f"{at} has token ids outside of 0 to {_MAX_ID}", code="value_out_of_range", param=at)
    return tuple(value)
