"""Session ids that this edge has minted: 128 random bits, bound to their owner by a MAC.

An id from outside is no credential: one that was not minted here, or not for who presents it, is nobody's session. The
binding is in the id itself, so that nothing is kept: every replica with the same keys knows it again, and after a
restart too.

    id = base64url(16 random bytes ‖ key id ‖ HMAC-SHA-256(key, random ‖ owner)[:16])      44 characters
"""

from __future__ import annotations

import base64
import secrets
from binascii import Error
from collections.abc import Callable
from typing import Final

from otelctx.policy.trust import Key, Keyring

__all__ = ["Sessions"]

_PURPOSE: Final = b"session"
_RANDOM: Final = 16
_BYTES: Final = _RANDOM + 17
_CHARS: Final = 44
_ALPHABET: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_TRIES: Final = 64


class Sessions:
    """``keys`` gives the process's keys as they are now. Without any, ids are good until this process ends."""

    def __init__(self, keys: Callable[[], Keyring]) -> None:
        self._keys = keys
        self._own = Keyring([Key(0, "default", secrets.token_bytes(32))])

    @property
    def lasting(self) -> bool:
        """Whether ids outlive this process."""
        return bool(self._keys())

    @property
    def _keyring(self) -> Keyring:
        return self._keys() or self._own

    def mint(self, owner: str, fits: Callable[[str], bool] = lambda _: True) -> str:
        """A new id for ``owner``; one that ``fits``, if such a one is found soon."""
        for _ in range(_TRIES):
            random = secrets.token_bytes(_RANDOM)
            seal = self._keyring.seal(_PURPOSE, random + owner.encode("utf-8", "surrogatepass"))
            session = base64.urlsafe_b64encode(random + seal).decode()
            if fits(session):
                break
        return session

    def owned(self, session: str, owner: str) -> bool:
        """Whether ``session`` was minted for ``owner``, here or by whoever shares a key."""
        if len(session) != _CHARS or not _ALPHABET.issuperset(session):
            return False
        try:
            data = base64.urlsafe_b64decode(session)
        except Error:
            return False
        body = data[:_RANDOM] + owner.encode("utf-8", "surrogatepass")
        return len(data) == _BYTES and self._keyring.sealed(_PURPOSE, body, data[_RANDOM:])
