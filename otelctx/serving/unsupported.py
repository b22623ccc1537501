"""Which parameters of OpenAI's API mean nothing here, and which ask for something that this server doesn't do.

Silently ignoring a parameter that changes the answer is worse than refusing it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from otelctx.errors import InvalidRequest
from otelctx.serving.fields import shown

__all__ = ["CHAT", "TEXT", "Inert", "check"]


@dataclass(frozen=True, slots=True)
class Inert:
    """``leaves_alone`` tells whether a value of the parameter leaves the answer as it is; ``schema`` says the same."""

    leaves_alone: Callable[[object], bool]
    schema: dict[str, Any]


def _only(*accepted: object) -> Inert:
    def same(value: object) -> bool:
        # 1 == True, to Python alone.
        return any(value == a and isinstance(value, bool) is isinstance(a, bool) for a in accepted)

    return Inert(same, {"enum": [*accepted, None]})


_ANYTHING: Final = Inert(lambda value: True, {})
_TEXT: Final = Inert(lambda value: isinstance(value, str), {"type": ["string", "null"]})
_EMPTY: Final = _only([], {})

# hints for OpenAI's own billing, caching and abuse control
_HINTS: Final[Mapping[str, Inert]] = {
    "metadata": _ANYTHING,
    "prompt_cache_key": _TEXT,
    "prompt_cache_retention": _TEXT,
    "safety_identifier": _TEXT,
    "service_tier": _only("auto", "default"),
    "store": _only(False),
    "user": _TEXT,
}
CHAT: Final[Mapping[str, Inert]] = {
    **_HINTS,
    # with a value that asks for what is done anyway
    "audio": _EMPTY,
    "function_call": _only("none", "auto"),
    "functions": _EMPTY,
    "logit_bias": _EMPTY,
    "logprobs": _only(False),
    "modalities": _only(["text"]),
    "n": _only(1),
    "parallel_tool_calls": _ANYTHING,  # without tools it has nothing to say
    "prediction": _EMPTY,
    "response_format": _only({"type": "text"}),
    "tool_choice": _only("none", "auto"),
    "tools": _EMPTY,
    "top_logprobs": _only(0),
    # never inert
    "reasoning_effort": _EMPTY,
    "verbosity": _EMPTY,
    "web_search_options": _EMPTY,
}
TEXT: Final[Mapping[str, Inert]] = {
    **_HINTS,
    "best_of": _only(1),
    "echo": _only(False),
    "logit_bias": _EMPTY,
    "logprobs": _only(),  # 0 asks for the drawn token's
    "n": _only(1),
    "suffix": _only(""),
}


def check(body: Mapping[str, Any], known: frozenset[str], inert: Mapping[str, Inert]) -> None:
    """Raise :class:`~otelctx.errors.InvalidRequest` for a parameter outside ``known`` that can't be honoured."""
    for name, value in body.items():
        if name in known or value is None:
            continue
        found = inert.get(name)
        if found is None:
            raise InvalidRequest(
                f"unknown parameter: {shown(name)}; leave it out", code="unknown_parameter", param=shown(name)
            )
        if not found.leaves_alone(value):
            raise InvalidRequest(
                f"{name} is not supported by this server with this value; leave it out",
                code="unsupported_parameter",
                param=name,
            )
