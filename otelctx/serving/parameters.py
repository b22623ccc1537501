"""The parameters that both kinds of completion take: how each is read, and its JSON Schema, from one table. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from otelctx.errors import InvalidRequest
from otelctx.inference.params import Params
from otelctx.serving import fields

__all__ = [
    "CHAT_ONLY",
    "COMMON",
    "MAX_TOKENS",
    "SCHEMAS",
    "Integer",
    "Number",
    "include_usage",
    "max_tokens",
    "model",
    "params",
    "stop",
]

Json = dict[str, Any]

# Far beyond any window; it keeps the number within what telemetry can carry.
MAX_TOKENS: Final = 2**31 - 1
_INT64: Final = (-(2**63), 2**63 - 1)
_MAX_STOPS: Final = 4


@dataclass(frozen=True, slots=True)
class Number:
    """A number in [low, high], or in (low, high] if ``above``."""

    name: str
    low: float
    high: float
    about: str
    above: bool = False

    def read(self, body: Mapping[str, Any], at: str = "") -> float | None:
        return fields.number(body, self.name, self.low, self.high, above=self.above, at=at)

    def schema(self) -> Json:
        least = "exclusiveMinimum" if self.above else "minimum"
        return {"type": ["number", "null"], least: self.low, "maximum": self.high, "description": self.about}


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer in [low, high]. With ``clip`` a larger one is taken for ``high``: callers are told of no maximum."""

    name: str
    low: int
    high: int
    about: str
    clip: bool = False

    def read(self, body: Mapping[str, Any]) -> int | None:
        found = fields.integer(body, self.name, self.low, math.inf if self.clip else self.high)
        return None if found is None else min(found, self.high)

    def schema(self) -> Json:
        bounds = {"minimum": self.low} | ({} if self.clip else {"maximum": self.high})
        return {"type": ["integer", "null"], **bounds, "description": self.about}


_SAMPLING: Final = (
    Number("temperature", 0, 2, "0 takes the likeliest token each time. Default 1."),
    Number("top_p", 0, 1, "Draw from the likeliest tokens with this sum of probability. Default 1."),
    Integer("top_k", 0, MAX_TOKENS, "Draw from this many of the likeliest tokens; 0 is no limit. Default 0."),
    Integer("seed", *_INT64, "The same seed and request draw the same tokens."),
    Number("frequency_penalty", -2, 2, "Per time that a token has been drawn. Default 0."),
    Number("presence_penalty", -2, 2, "If a token has been drawn. Default 0."),
)
_WINDOW_LIMITS: Final = "The window is a limit as well: huge values are fine."
_OLD: Final = Integer("max_tokens", 1, MAX_TOKENS, f"Tokens of the answer at most. {_WINDOW_LIMITS}", clip=True)
_NEW: Final = Integer(
    "max_completion_tokens", 1, MAX_TOKENS, f"What `max_tokens` is called now. {_WINDOW_LIMITS}", True
)

_STREAM_OPTIONS: Final = {"include_usage", "include_obfuscation"}
_STOP_STRING: Final[Json] = {"type": "string", "minLength": 1}
SCHEMAS: Final[Mapping[str, Json]] = {
    "stream": {"type": ["boolean", "null"], "description": "Server-sent events instead of one JSON object."},
    "stream_options": {
        "type": ["object", "null"],
        "description": "Only with `stream: true`.",
        "properties": {
            "include_usage": {"type": ["boolean", "null"], "description": "A last chunk with the usage."},
            "include_obfuscation": {"type": ["boolean", "null"], "description": "Has no effect: nothing is padded."},
        },
        "additionalProperties": False,
    },
    "stop": {
        "description": "Strings that end the answer; they are not part of it.",
        "anyOf": [_STOP_STRING, {"type": "array", "items": _STOP_STRING, "maxItems": _MAX_STOPS}, {"type": "null"}],
    },
    _OLD.name: _OLD.schema(),
    **{parameter.name: parameter.schema() for parameter in _SAMPLING},
}
CHAT_ONLY: Final[Mapping[str, Json]] = {_NEW.name: _NEW.schema()}
COMMON: Final = frozenset(SCHEMAS)


def model(body: Mapping[str, Any]) -> str:
    found = body.get("model")
    if found is None:
        raise InvalidRequest(
            "model is required: /v1/models lists what there is", code="missing_required_parameter", param="model"
        )
    return fields.text(found, "model")


def params(body: Mapping[str, Any]) -> Params:
    given: dict[str, Any] = {parameter.name: parameter.read(body) for parameter in _SAMPLING}
    return Params(**{name: value for name, value in given.items() if value is not None})


def max_tokens(body: Mapping[str, Any]) -> int | None:
    """By either name; both must not contradict each other."""
    old, new = _OLD.read(body), _NEW.read(body)
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            "max_tokens and max_completion_tokens contradict each other: send one of them",
            code="invalid_request",
            param="max_tokens",
        )
    return old if new is None else new


def stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    items: list[object] = value if isinstance(value, list) else [value]
    if len(items) > _MAX_STOPS:
        raise InvalidRequest(f"stop takes up to {_MAX_STOPS} strings", code="array_above_max_length", param="stop")
    stops = tuple(fields.text(item, "stop") for item in items)
    if "" in stops:
        raise InvalidRequest("a stop string is not empty", code="invalid_value", param="stop")
    return stops


def include_usage(body: Mapping[str, Any], stream: bool) -> bool:
    options = fields.mapping(body, "stream_options")
    if options is None:
        return False
    if not stream:
        raise InvalidRequest(
            "stream_options is only allowed when stream is true", code="invalid_request", param="stream_options"
        )
    fields.known(options, _STREAM_OPTIONS, "stream_options")
    fields.boolean(options, "include_obfuscation", at="stream_options.")
    return fields.boolean(options, "include_usage", at="stream_options.")
