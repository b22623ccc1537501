"""Who may send context: by MAC, or by address where the operator says so. Default-deny, pure.

    MAC = HMAC-SHA-256(key, "otelctx/1\\0" ‖ direction ‖ u16 len ‖ domain ‖ body)[:16]
    key = HKDF-SHA-256(master, salt = empty, info = "otelctx/1\\0" ‖ domain ‖ "\\0" ‖ u64 hour, 32 bytes)

``direction`` is ``>`` for a frame and ``<`` for an ack. The previous, the current and the next hour are accepted, so
that a frame older than two hours is no credential, while a younger replay yields the same state and adds nothing.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from otelctx.errors import ConfigError

__all__ = ["ACK", "FRAME", "ClientTrust", "Key", "Keyring", "networks"]

FRAME: Final = b">"
ACK: Final = b"<"
MASTER_BYTES: Final = 16

_LABEL: Final = b"otelctx/1\0"
_TRAILER: Final = b"\x7a\x11"
_HOUR: Final = 3600
_MAX_HOPS: Final = 32  # proxies of ours in a row
_MAX_HOP: Final = 56  # characters: the longest address, brackets and a port
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Key:
    """One master key: ``key_id`` 0–255, the trust domain it speaks for, at least 16 bytes of secret."""

    key_id: int
    domain: str
    master: bytes = field(repr=False)

    def for_hour(self, hour: int) -> bytes:
        prk = hmac.digest(b"", self.master, "sha256")
        info = _LABEL + self.domain.encode() + b"\0" + struct.pack(">Q", hour)
        return hmac.digest(prk, info + b"\x01", "sha256")


class Keyring:
    """The keys of this process: the first signs, all verify. Hour keys are derived once each."""

    __slots__ = ("_derived", "_keys", "_sealing", "_signer")

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._keys = {key.key_id: key for key in keys}
        if len(self._keys) != len(keys):
            raise ConfigError("OTELCTX_KEYS: two keys have the same id; ids tell keys apart on the wire")
        self._signer = keys[0] if keys else None
        # (key id, hour, direction) → HMAC object keyed and fed with everything that comes before the body.
        self._derived: dict[tuple[int, int, bytes], hmac.HMAC] = {}
        self._sealing: dict[tuple[int, bytes], hmac.HMAC] = {}

    @classmethod
    def parse(cls, text: str) -> Keyring:
        """Keys from ``id[@domain]:base64,…``; the empty text is no keys.

        Raises :class:`~otelctx.errors.ConfigError`, which never repeats the secret.
        """
        return cls([_parse_key(part.strip(), at) for at, part in enumerate(text.split(",")) if part.strip()])

    @property
    def ids(self) -> tuple[int, ...]:
        """Of all keys; the first one signs."""
        return tuple(self._keys)

    def __bool__(self) -> bool:
        return self._signer is not None

    def sign(self, direction: bytes, body: bytes, now: float) -> bytes:
        """The 19-byte trailer for ``body``, or no bytes without keys. ``now`` is Unix time in seconds."""
        key = self._signer
        if key is None:
            return b""
        return _TRAILER + bytes((key.key_id,)) + self._mac(key, int(now) // _HOUR, direction, body)

    def verify(self, direction: bytes, body: bytes, mac: bytes, now: float) -> str | None:
        """The trust domain that vouches for ``body``, or ``None``. ``mac`` is key id and 16 bytes. Constant time per
        key.
        """
        key = self._keys.get(mac[0]) if len(mac) == 17 else None
        if key is None:
            return None
        hour = int(now) // _HOUR
        for candidate in (hour, max(hour - 1, 0), hour + 1):
            if hmac.compare_digest(self._mac(key, candidate, direction, body), mac[1:]):
                return key.domain
        return None

    def seal(self, purpose: bytes, body: bytes) -> bytes:
        """Key id and MAC, 17 bytes, by which this key's holders know ``body`` again as long as the key is listed.

        ``purpose`` is a fixed word of up to 255 bytes, other than 8. Raises :class:`~otelctx.errors.ConfigError`
        without keys.
        """
        if self._signer is None:
            raise ConfigError("OTELCTX_KEYS: there is no key to seal with")
        return bytes((self._signer.key_id,)) + self._seal(self._signer, purpose, body)

    def sealed(self, purpose: bytes, body: bytes, seal: bytes) -> bool:
        """Whether ``seal`` is one of ``body``, by any of the keys. Constant time per key."""
        key = self._keys.get(seal[0]) if len(seal) == 17 else None
        return key is not None and hmac.compare_digest(self._seal(key, purpose, body), seal[1:])

    def _seal(self, key: Key, purpose: bytes, body: bytes) -> bytes:
        prepared = self._sealing.get((key.key_id, purpose))
        if prepared is None:
            # As for frames, with the purpose where they have the hour, whose 8 bytes no purpose has.
            prk = hmac.digest(b"", key.master, "sha256")
            derived = hmac.digest(prk, _LABEL + key.domain.encode() + b"\0" + purpose + b"\x01", "sha256")
            prepared = self._sealing[key.key_id, purpose] = hmac.new(derived, digestmod="sha256")
        mac = prepared.copy()
        mac.update(body)
        return mac.digest()[:16]

    def _mac(self, key: Key, hour: int, direction: bytes, body: bytes) -> bytes:
        slot = (key.key_id, hour, direction)
        prepared = self._derived.get(slot)
        if prepared is None:
            domain = key.domain.encode()
            prefix = _LABEL + direction + struct.pack(">H", len(domain)) + domain
            prepared = hmac.new(key.for_hour(hour), prefix, "sha256")
            if len(self._derived) >= 8 * max(1, len(self._keys)):
                self._derived.clear()  # hours have passed; what is still in use is derived again
            self._derived[slot] = prepared
        mac = prepared.copy()
        mac.update(body)
        return mac.digest()[:16]


def _parse_key(text: str, at: int) -> Key:
    where = f"key {at + 1} of OTELCTX_KEYS"
    head, colon, secret = text.partition(":")
    number, _, domain = head.partition("@")
    if not colon or len(number) > 3 or not (number.isascii() and number.isdecimal()) or int(number) > 255:
        raise ConfigError(f"{where} is not id[@domain]:base64 with an id from 0 to 255")
    if not (domain or "default").isascii() or len(domain) > 255:
        raise ConfigError(f"{where}: a domain is up to 255 ASCII characters")
    try:
        master = base64.b64decode(secret, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{where}: the secret is not base64; try: openssl rand -base64 32") from None
    if len(master) < MASTER_BYTES:
        raise ConfigError(f"{where}: {len(master)} bytes of secret; at least {MASTER_BYTES} are needed")
    return Key(int(number), domain or "default", master)


def networks(entries: Iterable[str], what: str) -> tuple[_Network, ...]:
    """Addresses and CIDR networks. Raises :class:`~otelctx.errors.ConfigError` naming ``what``."""
    found: list[_Network] = []
    for item in entries:
        try:
            found.append(ipaddress.ip_network(item.strip()))
        except ValueError as exc:
            raise ConfigError(f"{what}: {item.strip()!r} is no address or network: {exc}") from None
    return tuple(found)


class ClientTrust:
    """Which client addresses are believed without a MAC, and which proxies may say who the client is.

    Both are empty by default. There is no implicit trust in loopback: a plain ``proxy_pass`` forwards the internet from
    127.0.0.1 without X-Forwarded-For. Unix sockets and unknown clients are never trusted.
    """

    __slots__ = ("_clients", "_proxies")

    def __init__(self, trusted_clients: Iterable[str] = (), trusted_proxies: Iterable[str] = ()) -> None:
        self._clients = networks(trusted_clients, "OTELCTX_TRUSTED_CLIENTS")
        self._proxies = networks(trusted_proxies, "OTELCTX_TRUSTED_PROXIES")

    def resolve(self, peer: str | None, forwarded_for: Sequence[bytes | str] = ()) -> str | None:
        """The client's address: the right-most hop that is no trusted proxy, or ``None`` if that is not an address."""
        address = _address(peer)
        if address is None or not self._proxies or not _within(address, self._proxies):
            return None if address is None else str(address)
        joined = ",".join(h.decode("latin-1") if isinstance(h, bytes) else h for h in forwarded_for)
        for _ in range(_MAX_HOPS):
            joined, comma, hop = joined.rpartition(",")
            address = _hop(hop.strip())
            if address is None:
                return None  # garbage or empty: whoever stands behind it is unknown
            if not _within(address, self._proxies):
                return str(address)
            if not comma:
                break
        return None  # proxies only: a proxy does not itself send context

    def claimed(self, peer: str | None, forwarded: str | None) -> bool:
        """Whether ``peer`` may be no connection's address but what the sender has written into X-Forwarded-For.

        Servers put it there: uvicorn, by default, for every connection from the loopback, which a plain ``proxy_pass``
        makes of the whole internet. With proxies of ours in front it is the one that the last of them has seen.
        """
        if not forwarded or not peer or self.proxy(peer):
            return False
        hops = forwarded.split(",")
        address = _address(peer)
        if peer not in forwarded and all(_hop(hop.strip()) != address for hop in hops[-_MAX_HOPS:]):
            return False
        for hop in reversed(hops[-_MAX_HOPS:]) if self._proxies else ():
            found = _hop(hop.strip())
            if found is None or not _within(found, self._proxies):
                return found is None or found != address
        return True

    def proxy(self, peer: str | None) -> bool:
        """Whether the connection's ``peer`` is a proxy that may say on whose behalf it asks."""
        address = _address(peer)
        return address is not None and _within(address, self._proxies)

    def trusted(self, client: str | None) -> bool:
        """Whether a frame without MAC, or trace context, is believed from the resolved ``client``."""
        if not self._clients:
            return False
        address = _address(client)
        return address is not None and _within(address, self._clients)


def _address(text: str | None) -> _Address | None:
    """A connection's address: IPv4 where it is that, and without the zone, in which any text could stand."""
    try:
        address = ipaddress.ip_address(text or "")
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped or ipaddress.IPv6Address(int(address))


def _hop(text: str) -> _Address | None:
    """An address as proxies write it down, some with the port: ``192.0.2.1:4711``, ``[2001:db8::1]:4711``. A zone means
    nothing beyond the machine that it is of."""
    if len(text) > _MAX_HOP or "%" in text:
        return None
    if text.startswith("["):
        text, bracket, port = text[1:].partition("]")
        return _address(text) if bracket and ":" in text and (not port or _is_port(port)) else None
    host, colon, port = text.partition(":")
    return _address(host) if colon and "." in host and _is_port(f":{port}") else _address(text)


def _is_port(text: str) -> bool:
    return text[:1] == ":" and 0 < len(text[1:]) < 6 and text[1:].isascii() and text[1:].isdecimal()


def _within(address: _Address, nets: tuple[_Network, ...]) -> bool:
    return any(address.version == net.version and address in net for net in nets)
