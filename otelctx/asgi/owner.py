"""Who owns the sessions that a request creates or continues."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ANONYMOUS", "owner_of"]

ANONYMOUS: Final = "anonymous"
_AUTHORIZATION: Final = b"authorization"


def owner_of(scope: Mapping[str, Any]) -> str:
    """The owner of an ASGI request: whom a middleware has authenticated, else the holder of its API key, else nobody.

    ``scope["user"]`` is what Starlette's ``AuthenticationMiddleware`` leaves, and what others do alike. Of a key only
    its SHA-256 is kept: an owner is stored and compared, and must not be worth stealing.
    """
    user = scope.get("user")
    if user is not None and getattr(user, "is_authenticated", False):
        # Hashed as well, so that no name, however it is chosen, can pass for another kind of owner.
        return "user:" + hashlib.sha256(_identity(user).encode("utf-8", "surrogatepass")).hexdigest()
    for name, value in scope["headers"]:
        if name == _AUTHORIZATION and value:
            return "key:" + hashlib.sha256(_credentials(value)).hexdigest()
    return ANONYMOUS


def _identity(user: object) -> str:
    for field in ("identity", "username", "display_name"):
        try:
            found = getattr(user, field, None)
        except NotImplementedError:  # Starlette's BaseUser leaves identity to its subclasses
            continue
        if isinstance(found, str) and found:
            return found
    return str(user)


def _credentials(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    return key.strip() if key and scheme.lower() == b"bearer" else value
