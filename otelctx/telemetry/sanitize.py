"""Text from outside, made fit for an attribute: bounded, and encodable as the UTF-8 that OTLP demands."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["query", "text"]

LIMIT: Final = 1024
ELLIPSIS: Final = "…"
REDACTED: Final = "REDACTED"

# Names whose value in a query string is a credential: those of the HTTP conventions, and the ones people use.
_SECRETS: Final = re.compile(
    r"(?i)(?<![^&;?])((?:awsaccesskeyid|signature|sig|x-goog-signature|x-amz-signature|x-amz-credential|"
    r"x-amz-security-token|access_token|refresh_token|id_token|token|api[_-]?key|key|password|passwd|pwd|secret|"
    r"client_secret|code|auth|authorization|session|sessionid|jwt)=)[^&;]+"
)


def text(value: str | bytes, limit: int = LIMIT) -> str:
    """``value`` with at most ``limit`` characters, the last of them ``…`` if any were cut.

    Bytes are read as latin-1, as HTTP does, so nothing raises. Lone surrogates would make the whole batch of spans
    unencodable and NUL is refused by several back ends; both become U+FFFD.
    """
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if len(value) > limit:
        value = value[: max(0, limit - 1)] + ELLIPSIS
    if value.isascii():
        return value.replace("\0", "\ufffd") if "\0" in value else value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")


def query(value: str | bytes, limit: int = LIMIT) -> str:
    """A query string as :func:`text`, with the values of well-known credentials replaced by ``REDACTED``."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    # Cut first: a pattern never runs over more than what is kept. A credential cut in half is still redacted.
    return _SECRETS.sub(rf"\1{REDACTED}", text(value, limit)) if "=" in value else text(value, limit)
