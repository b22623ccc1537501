"""Which parameters of OpenAI's API mean nothing here, and which ask for something that this server doesn't do.

Silently ignoring a parameter that changes the answer is worse than refusing it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from otelctx.errors import InvalidRequest

__all__ = ["check"]


def _anything(value: object) -> bool:
    return True


def _text(value: object) -> bool:
    return isinstance(value, str)


def _one_of(*accepted: object) -> Callable[[object], bool]:
    return lambda value: any(type(value) is type(a) and value == a for a in accepted)


def _empty(value: object) -> bool:
    return value in ([], {})


# parameter → whether this value of it leaves the answer as it is
_INERT: Final[Mapping[str, Callable[[object], bool]]] = {
    # hints for OpenAI's own billing, caching and abuse control
    "metadata": _anything,
    "prompt_cache_key": _text,
    "prompt_cache_retention": _text,
    "safety_identifier": _text,
    "service_tier": _one_of("auto", "default"),
    "store": _one_of(False),
    "user": _text,
    # with a value that asks for what is done anyway
    "audio": _empty,
    "function_call": _one_of("none", "auto"),
    "functions": _empty,
    "logit_bias": _empty,
    "logprobs": _one_of(False),
    "modalities": _one_of(["text"]),
    "n": _one_of(1),
    "parallel_tool_calls": _anything,  # without tools it has nothing to say
    "prediction": _empty,
    "response_format": _one_of({"type": "text"}),
    "tool_choice": _one_of("none", "auto"),
    "tools": _empty,
    "top_logprobs": _one_of(0),
    # never inert
    "reasoning_effort": _empty,
    "verbosity": _empty,
    "web_search_options": _empty,
}


def check(body: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise :class:`~otelctx.errors.InvalidRequest` for a parameter outside ``known`` that can't be honoured."""
    for name, value in body.items():
        if name in known or value is None:
            continue
        inert = _INERT.get(name)
        if inert is None:
            shown = name[:64].encode("ascii", "backslashreplace").decode()
            raise InvalidRequest(f"unknown parameter: {shown}", code="unknown_parameter", param=shown)
        if not inert(value):
            raise InvalidRequest(
                f"{name} is not supported by this server with this value", code="unsupported_parameter", param=name
            )
