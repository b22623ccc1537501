"""Typed look at the fields of a JSON object; what is wrong is said with the field's name. ``null`` counts as absent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from otelctx.errors import InvalidRequest

__all__ = ["boolean", "integer", "known", "mapping", "number", "shown", "text", "wrong"]

_NAMES: Final[dict[type, str]] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def wrong(param: str, wanted: str, value: object) -> InvalidRequest:
    """The error for a value of the wrong type."""
    found = _NAMES.get(type(value), type(value).__name__)
    return InvalidRequest(f"{param} must be {wanted}, not {found}", code="invalid_type", param=param)


def text(value: object, param: str) -> str:
    """``value`` as text that UTF-8 can express; JSON's escapes can also spell halves of characters."""
    if type(value) is not str:
        raise wrong(param, "a string", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{param} has a lone surrogate (half a character) at position {error.start}",
                code="invalid_unicode",
                param=param,
            ) from None
    return value


def boolean(body: Mapping[str, Any], name: str, default: bool = False, *, at: str = "") -> bool:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not bool:
        raise wrong(at + name, "a boolean", value)
    return value


def integer(body: Mapping[str, Any], name: str, low: int, high: float, *, at: str = "") -> int | None:
    """An integer in [low, high]. ``True`` is none, ``5.0`` is one: JSON has only one kind of number."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise wrong(at + name, "an integer", value)
    return int(_within(value, at + name, low, high))


def number(
    body: Mapping[str, Any], name: str, low: float, high: float, *, above: bool = False, at: str = ""
) -> float | None:
    """A finite number in [low, high], or in (low, high] if ``above``."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) not in (int, float):
        raise wrong(at + name, "a number", value)
    if above and value == low:
        raise InvalidRequest(f"{at + name} must be greater than {low}", code="value_out_of_range", param=at + name)
    return float(_within(value, at + name, low, high))


def mapping(body: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = body.get(name)
    if value is not None and type(value) is not dict:
        raise wrong(name, "an object", value)
    return value


def known(body: Mapping[str, Any], names: Collection[str], param: str) -> None:
    """Raise :class:`~otelctx.errors.InvalidRequest` if the object ``param`` has fields that are not in ``names``."""
    if unknown := [name for name in body if name not in names]:
        raise InvalidRequest(
            f"unknown parameter: {param}.{shown(unknown[0])}; it takes {', '.join(sorted(names))}",
            code="unknown_parameter",
            param=param,
        )


def shown(name: str) -> str:
    """A name from outside, fit for a message: short, and ASCII whatever it holds."""
    return name[:64].encode("ascii", "backslashreplace").decode()


def _within(value: float, param: str, low: float, high: float) -> float:
    if low <= value <= high:
        return value
    bound = f"at least {low}" if value < low else f"at most {high}"
    raise InvalidRequest(f"{param} must be {bound}", code="value_out_of_range", param=param)
