"""Declarations of context keys, and the check of a value against one. Pure: no clock, no environment, no I/O."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal, get_args

from otelctx.errors import ConfigError, ContextLimitExceeded, ContextTypeError
from otelctx.semconv import INCOMPLETE

__all__ = ["Flow", "KeyRegistry", "KeySpec", "Kind", "Rule", "Value", "Visibility", "check", "kind_of", "normalise"]

Value = str | int | bool | float | bytes
Flow = Literal["down", "local", "up"]
Visibility = Literal["internal", "public"]
Rule = Literal["sum", "max", "min", "any", "last"]

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_./-]{0,63}")
MAX_DOWN_BYTES: Final = 1024
MAX_UP_BYTES: Final = 256
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1


class Kind(IntEnum):
    """Type byte of a value, as it goes into a leaf and on the wire."""

    STR = 1
    INT = 2
    BOOL = 3
    FLOAT = 4
    BYTES = 5


_KINDS: Final[dict[type, Kind]] = {str: Kind.STR, int: Kind.INT, bool: Kind.BOOL, float: Kind.FLOAT, bytes: Kind.BYTES}
_RULE_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "sum": (int,),
    "max": (int, float),
    "min": (int, float),
    "any": (bool,),
    "last": (str, int, bool, float, bytes),
}
_FLOWS: Final[tuple[str, ...]] = get_args(Flow)
_VISIBILITIES: Final[tuple[str, ...]] = get_args(Visibility)


@dataclass(frozen=True, slots=True)
class KeySpec:
    """What is declared of a key. ``declared`` is ``file:line``, for messages; it does not take part in equality."""

    name: str
    type: type
    flow: Flow = "down"
    visibility: Visibility = "internal"
    rule: Rule | None = None
    declared: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"key name {self.name!r} must match [a-z0-9][a-z0-9_./-]{{0,63}}")
        if self.type not in _KINDS:
            raise ConfigError(f"key {self.name!r}: type must be str, int, bool, float or bytes, not {self.type!r}")
        for what, word, words in (("flow", self.flow, _FLOWS), ("visibility", self.visibility, _VISIBILITIES)):
            if word not in words:  # never to be taken for one that lets more out
                raise ConfigError(f"key {self.name!r}: {what} must be {' or '.join(words)}, not {word!r}")
        if self.rule is not None and self.rule not in _RULE_TYPES:
            raise ConfigError(f"key {self.name!r}: rule must be {' or '.join(_RULE_TYPES)}, not {self.rule!r}")
        if (self.flow == "up") != (self.rule is not None):
            raise ConfigError(f"key {self.name!r}: a rule belongs to keys that flow up, and only to them")
        if self.rule is not None and self.type not in _RULE_TYPES[self.rule]:
            names = ", ".join(t.__name__ for t in _RULE_TYPES[self.rule])
            raise ConfigError(f"key {self.name!r}: rule {self.rule!r} is for {names}, not {self.type.__name__}")
        if self.visibility == "public" and self.flow != "down":
            raise ConfigError(f"key {self.name!r}: only keys that flow down can be public")
        if self.visibility == "public" and "/" in self.name:
            raise ConfigError(f"key {self.name!r}: a public key goes into W3C baggage, whose names have no '/'")

    @property
    def kind(self) -> Kind:
        return _KINDS[self.type]


class KeyRegistry:
    """Declared keys by name. An equal redeclaration returns the first spec, another one is a :class:`ConfigError`.

    ``generation`` is another number after every new declaration, for those who remember what they made of the old ones.
    """

    __slots__ = ("_specs", "generation", "local")

    def __init__(self) -> None:
        self._specs: dict[str, KeySpec] = {}
        self.generation = 0
        self.local: set[str] = set()  # names of the keys that never leave the process

    def declare(self, spec: KeySpec) -> KeySpec:
        if spec.name == INCOMPLETE:
            raise ConfigError(f"key {INCOMPLETE!r} is otelctx's own; read ``scope.incomplete`` instead")
        known = self._specs.setdefault(spec.name, spec)
        if known.flow == "local":
            self.local.add(known.name)
        self.generation = len(self._specs)  # last: who has seen it sees the key
        if known != spec:
            raise ConfigError(
                f"key {spec.name!r} is already declared otherwise at {known.declared or 'an unknown place'}: "
                f"{_describe(known)}; here: {_describe(spec)}"
            )
        return known

    def get(self, name: str) -> KeySpec | None:
        return self._specs.get(name)


def _describe(spec: KeySpec) -> str:
    return f"{spec.type.__name__}, flow {spec.flow}, {spec.visibility}" + (f", rule {spec.rule}" if spec.rule else "")


def kind_of(value: object) -> Kind:
    """Type byte of ``value`` by its exact type (``True`` is no int). Raises :class:`ContextTypeError`."""
    kind = _KINDS.get(type(value))
    if kind is None:
        raise ContextTypeError(f"a context value is str, int, bool, float or bytes, not {type(value).__name__}")
    return kind


def normalise(value: object, limit: int = MAX_DOWN_BYTES) -> Value:
    """``value`` as it is stored: −0.0 becomes 0.0. Knows nothing of keys; the receiver uses it on values from outside.

    Raises :class:`ContextTypeError` for another type, a lone surrogate or NaN, :class:`ContextLimitExceeded` for an
    integer outside 64 bits or text over ``limit`` bytes of UTF-8.
    """
    if type(value) not in _KINDS or not isinstance(value, str | int | bool | float | bytes):
        raise ContextTypeError(f"a context value is str, int, bool, float or bytes, not {type(value).__name__}")
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise ContextLimitExceeded(f"an integer of {value.bit_length()} bits does not fit into 64")
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise ContextTypeError("NaN equals nothing, not even itself, and can't be context")
        return value + 0.0
    try:
        size = len(value.encode() if isinstance(value, str) else value)
    except UnicodeEncodeError as exc:
        raise ContextTypeError(f"text with a lone surrogate at {exc.start} is not UTF-8") from None
    if size > limit:
        raise ContextLimitExceeded(f"value of {size} bytes; at most {limit} are carried")
    return value


def check(spec: KeySpec, value: object) -> Value:
    """``value`` as it is stored under ``spec``.

    Raises :class:`ContextTypeError` if ``type(value)`` is not exactly ``spec.type``, :class:`ContextLimitExceeded` if
    it is too large (1024 bytes down, 256 up). Messages name the key, both types and where the key was declared.
    """
    where = f" (declared at {spec.declared})" if spec.declared else ""
    if type(value) is not spec.type:
        raise ContextTypeError(f"key {spec.name!r} takes {spec.type.__name__}, not {type(value).__name__}{where}")
    try:
        return normalise(value, MAX_UP_BYTES if spec.flow == "up" else MAX_DOWN_BYTES)
    except (ContextTypeError, ContextLimitExceeded) as exc:
        raise type(exc)(f"key {spec.name!r}: {exc.message}{where}") from None
