"""Headers as span attributes: those that were asked for, few and short, and no credentials.

The conventions leave it to whoever asks which headers are safe. Names that carry credentials everywhere are never
captured as they are, whoever asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from otelctx.errors import ConfigError
from otelctx.semconv import ACK_HEADER, HEADER, TIMEOUT_HEADER
from otelctx.telemetry import sanitize

__all__ = ["Capture", "capture"]

REDACTED: Final = "[REDACTED]"
MAX_KEYS: Final = 32  # of a request; an SDK has 128 attributes for all of a span
MAX_VALUES: Final = 8  # of a header
MAX_TEXT: Final = 256  # characters of a value
_MAX_NAME: Final = 64

_NAME: Final = re.compile(r"[!#$%&'+.^_`|~0-9a-z-]+\*?|\*")
# Context and credentials. Baggage carries what keys are told to, and is on the span by other means.
_SECRET: Final = frozenset(
    name.encode()
    for name in (
        *("authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "baggage"),
        *("authentication-info", "proxy-authentication-info", "www-authenticate", "x-auth-token", "x-csrf-token"),
        *("x-amz-security-token", "x-goog-iap-jwt-assertion", "x-forwarded-access-token"),
        *(HEADER, ACK_HEADER, TIMEOUT_HEADER),
    )
)
# Of a name that only a pattern has asked for, such a word is enough.
_SECRET_WORDS: Final = (b"auth", b"cookie", b"credential", b"jwt", b"key", b"passw", b"secret", b"session", b"token")

Lines = Iterable[tuple[bytes, bytes]]


class Capture:
    """``names``: header in lower case → attribute key. ``prefixes``: of names whose key is ``base`` and the name."""

    __slots__ = ("_base", "_names", "_prefixes")

    def __init__(self, base: str, names: Mapping[bytes, str], prefixes: tuple[bytes, ...]) -> None:
        self._base = base
        self._names = names
        self._prefixes = prefixes

    def attributes(self, lines: Lines) -> dict[str, Sequence[str]]:
        """Attributes for the header ``lines``: at most 32, of each at most 8 values of at most 256 characters.

        Lines of one name are one list, in order. Values are latin-1, so any byte is survived.
        """
        found: dict[str, list[str]] = {}
        for raw, value in lines:
            name = raw.lower()
            key = self._names.get(name)
            secret = name in _SECRET
            if key is None:
                if len(name) > _MAX_NAME or not name.startswith(self._prefixes) or not self._prefixes:
                    continue
                key = f"{self._base}.{sanitize.text(name, _MAX_NAME)}"
                secret = secret or any(word in name for word in _SECRET_WORDS)
            values = found.get(key)
            if values is None:
                if len(found) == MAX_KEYS:
                    continue
                values = found[key] = []
            if len(values) < MAX_VALUES:
                values.append(REDACTED if secret else sanitize.query(value, MAX_TEXT))
        return {key: tuple(values) for key, values in found.items()}


def capture(option: str, patterns: str | Iterable[str], base: str) -> Capture | None:
    """``patterns`` are names of headers, in any case, or beginnings of them with ``*`` after; ``None`` if there are
    none. Raises :class:`~otelctx.errors.ConfigError`, which names ``option``, for what can't be a header's name.
    """
    lowered = [pattern.lower() for pattern in ([patterns] if isinstance(patterns, str) else patterns)]
    for pattern in lowered:
        if _NAME.fullmatch(pattern) is None:
            raise ConfigError(f"{option}: {pattern!r} is no header's name; give names, or beginnings with a * after")
    if not lowered:
        return None
    names = {pattern.encode(): f"{base}.{pattern}" for pattern in lowered if not pattern.endswith("*")}
    return Capture(base, names, tuple(pattern[:-1].encode() for pattern in lowered if pattern.endswith("*")))
