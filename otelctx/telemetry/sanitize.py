"""What comes from outside, made fit for an attribute: bounded, without credentials, and encodable as OTLP demands.

One lone surrogate, one integer beyond 64 bits or one value of a type that OTLP has not costs the whole batch of spans
that it is exported with. Nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from opentelemetry.util.types import AttributeValue

__all__ = ["attributes", "integer", "path", "query", "text"]

LIMIT: Final = 1024
ELLIPSIS: Final = "…"
REDACTED: Final = "REDACTED"
_INT_MAX: Final = 2**63 - 1
_MAX_ITEMS: Final = 32

# Names whose value in a query string is a credential: those of the HTTP conventions, and the ones people use.
_SECRETS: Final = re.compile(
    r"(?i)(?<![^&;?])((?:awsaccesskeyid|signature|sig|x-goog-signature|x-amz-signature|x-amz-credential|"
    r"x-amz-security-token|access_token|refresh_token|id_token|token|api[_-]?key|key|password|passwd|pwd|secret|"
    r"client_secret|code|auth|authorization|session|sessionid|jwt)=)[^&;]+"
)
# A name with a percent sign in it, as servers decode it: %74oken is a token to them.
_ENCODED: Final = re.compile(r"(?<![^&;?])([^&;?=%]*%[^&;?=]*=)[^&;]+")
# User and password of a URL, wherever one stands: after its scheme, up to the host.
_USERINFO: Final = re.compile(r"(?<=://)[^/?#@\s]+@")


def text(value: str | bytes, limit: int = LIMIT) -> str:
    """``value`` with at most ``limit`` characters, the last of them ``…`` if any were cut.

    Bytes are read as latin-1, as HTTP does. Lone surrogates and NUL, which several back ends refuse, become U+FFFD.
    """
    if isinstance(value, bytes):
        value = value[: limit + 1].decode("latin-1")
    if len(value) > limit:
        value = value[: max(0, limit - 1)] + ELLIPSIS
    if value.isascii():
        return value.replace("\0", "\ufffd") if "\0" in value else value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")


def path(value: str | bytes, limit: int = LIMIT) -> str:
    """A path or a whole URL as :func:`text`; who stands before the host of a URL in it is ``REDACTED``."""
    if type(value) is str and len(value) <= limit and value.isascii() and "@" not in value and "\0" not in value:
        return value  # almost every path: nothing of the below would change it
    # Cut first: a pattern never runs over more than what is kept.
    cut = text(value, limit)
    if "@" in cut:
        return _USERINFO.sub(f"{REDACTED}:{REDACTED}@", cut)
    if cut.endswith(ELLIPSIS) and (scheme := cut.rfind("://")) >= 0 and "/" not in cut[scheme + 3 :]:
        # What was cut off may be the @ that would have made a credential of this.
        return cut[: scheme + 3] + ELLIPSIS
    return cut


def query(value: str | bytes, limit: int = LIMIT) -> str:
    """A query string as :func:`path`, with the values of well-known credentials replaced by ``REDACTED``, also of one
    that was cut in half."""
    cut = path(value, limit)
    if "=" not in cut:
        return cut
    if "%" in cut:
        cut = _ENCODED.sub(_unmasked, cut)
    return _SECRETS.sub(rf"\1{REDACTED}", cut)


def _unmasked(parameter: re.Match[str]) -> str:
    name = parameter[1]
    return f"{name}{REDACTED}" if _SECRETS.fullmatch(f"{unquote(name)}x") else parameter[0]


def integer(value: int) -> int:
    """``value`` in the 64 bits that OTLP has, or the nearest that they hold."""
    return max(-_INT_MAX - 1, min(value, _INT_MAX))


def attributes(given: Mapping[str, Any]) -> dict[str, AttributeValue]:
    """What somebody else's code wants on a span: keys and values as they are where OTLP can carry them, bounded, and
    other values by their ``str``. ``None`` and empty keys are left out, as the SDK does."""
    return {text(str(key), 256): _value(value) for key, value in given.items() if value is not None and str(key)}


def _value(value: Any) -> AttributeValue:
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, str | bytes):
        return text(value)
    if isinstance(value, Sequence):
        items = list(value[:_MAX_ITEMS])
        for kind in (bool, int, float, str):
            if all(type(item) is kind for item in items):
                return [_scalar(item) for item in items]
        return [_said(item) for item in items]
    return _said(value)


def _scalar(value: Any) -> Any:
    return text(value) if isinstance(value, str) else integer(value) if type(value) is int else value


def _said(value: Any) -> str:
    try:
        return text(str(value))
    except Exception:
        return f"({type(value).__name__}, whose text can't be made)"
