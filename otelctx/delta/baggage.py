"""W3C Baggage: our public keys in it, and everybody else's members beside them, kept to the byte.

Values are percent-encoded strictly: ``+`` is a plus sign, in both directions. (Form encoding, which the SDK's own
propagator uses, turns it into a space on the way between languages.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote_plus, unquote_to_bytes

from otelctx.context.keys import KeyRegistry, KeySpec, Value, normalise
from otelctx.context.state import State
from otelctx.delta.limits import MAX_BAGGAGE_BYTES, MAX_BAGGAGE_MEMBERS
from otelctx.errors import OtelctxError
from otelctx.semconv import INCOMPLETE

__all__ = ["Baggage", "decoded", "is_foreign", "members", "parse"]

_TRUE, _FALSE = "true", "false"
_NUMBER: Final = frozenset("0123456789+-.einf")  # inf included
_INCOMPLETE: Final = KeySpec(INCOMPLETE, bool, visibility="public")  # reserved, so nobody declares it


@dataclass(frozen=True, slots=True)
class Baggage:
    """``ours`` are values of declared public keys, typed; ``foreign`` the other members, joined, as they came."""

    ours: Mapping[str, Value] = field(repr=False)
    foreign: str = field(repr=False)


def parse(lines: Iterable[bytes | str], registry: KeyRegistry) -> Baggage:
    """Split inbound baggage. Several lines are one list (RFC 9110). Over 8192 bytes or 64 members nothing of ours is
    read, but ours are never among the foreign ones: those are passed on unread.

    A value that does not parse to its key's type is absent. Never raises.
    """
    texts = [line.decode("latin-1") if isinstance(line, bytes) else line for line in lines]
    joined = ",".join(texts)
    readable = len(joined) <= MAX_BAGGAGE_BYTES and joined.count(",") < MAX_BAGGAGE_MEMBERS
    ours: dict[str, Value] = {}
    foreign: list[str] = []
    for member in joined.split(","):
        label, _, rest = member.partition("=")
        name = label.strip()
        spec = _public(name, registry)
        if spec is None:
            if (text := member.strip()) and is_foreign(name, registry):
                foreign.append(text)
        elif readable and (value := _typed(spec, rest.partition(";")[0].strip())) is not None:
            ours.setdefault(name, value)
    return Baggage(ours, ",".join(foreign))


def is_foreign(name: str, registry: KeyRegistry) -> bool:
    """Whether the member ``name`` is somebody else's, and nothing of ours under another spelling.

    Such a one is not believed, and not passed on either: a propagator that decodes it would write it out in clear, for
    a next hop that trusts us.
    """
    return _public(name, registry) is None and _public(decoded(name), registry) is None


def decoded(name: str) -> str:
    """``name`` as OpenTelemetry's propagator for Python reads it: a form's field, where W3C has names as they are."""
    return unquote_plus(name).strip() if "%" in name or "+" in name else name


def _public(name: str, registry: KeyRegistry) -> KeySpec | None:
    spec = _INCOMPLETE if name == INCOMPLETE else registry.get(name)
    return spec if spec is not None and spec.visibility == "public" else None


def members(state: State, registry: KeyRegistry) -> dict[str, str]:
    """Our members for ``state``: name → percent-encoded value of every declared public key, and the completeness
    mark.
    """
    found: dict[str, str] = {}
    for item in state.entries():
        if _public(item.name, registry) is not None:
            found[item.name] = _text(item.value)
    return found


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    return quote(value if isinstance(value, bytes | str) else repr(value), safe="")  # 1e+22 has a plus sign, too


def _typed(spec: KeySpec, text: str) -> Value | None:
    try:
        raw = unquote_to_bytes(text.encode("latin-1", "replace"))
        if spec.type is bytes:
            return normalise(raw)
        decoded = raw.decode()
        if spec.type is bool:
            return {_TRUE: True, _FALSE: False}.get(decoded)
        if spec.type is not str and not _NUMBER.issuperset(decoded):  # Python reads more: 1_000, ١, blanks
            return None
        return normalise(spec.type(decoded))
    except (OtelctxError, ValueError):
        return None
