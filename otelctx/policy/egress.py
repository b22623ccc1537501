"""Which origins receive our context, and which part of it. Pure.

By default only origins inside the deployment do: loopback, private literal addresses, single-label names and names
under ``.internal``, ``.local`` and ``.svc``. Everyone else gets trace context alone. Cloud metadata services never get
anything of ours, whatever is allowed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from otelctx.context.keys import KeyRegistry
from otelctx.context.state import State
from otelctx.errors import ConfigError

__all__ = ["Egress", "view"]

_INSIDE: Final = (".internal", ".local", ".svc", ".localhost")
# Named one by one: ``ipaddress.is_private`` also counts documentation and benchmark networks, ``is_reserved`` even
# ``::1``.
_INSIDE_NETWORKS: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_METADATA_NAMES: Final = frozenset(
    ("metadata", "metadata.google.internal", "metadata.goog", "metadata.azure.internal", "metadata.tencentyun.com",
     "instance-data", "instance-data.ec2.internal")
)  # fmt: skip
_METADATA_ADDRESSES: Final = frozenset(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16",
                 "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254")
)  # fmt: skip
_METADATA_LABEL: Final = "instance-data."  # of each region of one cloud
# The first 96 bits of IPv6 addresses that a translator (RFC 6052) or an old system sends on to the IPv4 address in the
# rest.
_TRANSLATED: Final = frozenset((0, 0x0064FF9B << 64))
_MAX_DECISIONS: Final = 4096
_MAX_HOST: Final = 260  # characters: the longest name or bracketed address, and a dot


class Egress:
    """Decides per origin; decisions are remembered.

    ``allow`` adds host names, ``*.suffix`` patterns, addresses or CIDR networks, each with an optional ``:port``.
    """

    __slots__ = ("_decided", "_names", "_networks", "_suffixes")

    def __init__(self, allow: Iterable[str] = ()) -> None:
        """Raises :class:`~otelctx.errors.ConfigError` for an entry that is none of these."""
        self._names: set[tuple[str, int | None]] = set()
        self._suffixes: set[tuple[str, int | None]] = set()
        self._networks: list[tuple[_Network, int | None]] = []
        self._decided: dict[tuple[str, int | None], bool] = {}
        for item in allow:
            self._add(item.strip().lower())

    def _add(self, item: str) -> None:
        try:
            self._networks.append((ipaddress.ip_network(item), None))
            return
        except ValueError:
            host, port = _split_port(item)
        try:
            self._networks.append((ipaddress.ip_network(host.strip("[]")), port))
            return
        except ValueError:
            pass
        suffix = host.startswith("*.")
        name = _normal(host[2:] if suffix else host)
        if not _is_name(name):
            raise ConfigError(
                f"OTELCTX_EGRESS_ALLOW: {item!r} is no host name, *.suffix, address or network, with or without :port"
            )
        if suffix:
            self._suffixes.add((f".{name}", port))
        else:
            self._names.add((name, port))

    def allows(self, host: str, port: int | None = None) -> bool:
        """Whether frames and our baggage may go to ``host``, as the URL has it."""
        key = (host, port)
        found = self._decided.get(key)
        if found is None:
            if len(host) > _MAX_HOST:
                return False
            if len(self._decided) >= _MAX_DECISIONS:
                self._decided.clear()
            found = self._decided[key] = self._decide(_normal(host), port)
        return found

    def listed(self, host: str, port: int | None = None) -> bool:
        """Whether ``host`` is allowed by an entry of the configuration, and not merely for being inside."""
        host = _normal(host)
        address = _address(host)
        if address is None:
            return host not in _METADATA_NAMES and _is_name(host) and self._lists_name(host, port)
        return not _is_metadata(address) and self._lists_address(address, port)

    def _decide(self, host: str, port: int | None) -> bool:
        address = _address(host)
        if address is None:
            return self._decide_name(host, port)
        if _is_metadata(address):
            return False
        return self._lists_address(address, port) or any(
            address.version == inside.version and address in inside for inside in _INSIDE_NETWORKS
        )

    def _decide_name(self, host: str, port: int | None) -> bool:
        if host in _METADATA_NAMES or host.startswith(_METADATA_LABEL) or not _is_name(host):
            return False
        return self._lists_name(host, port) or "." not in host or host.endswith(_INSIDE)

    def _lists_address(self, address: _Address, port: int | None) -> bool:
        return any(p in (None, port) and address.version == n.version and address in n for n, p in self._networks)

    def _lists_name(self, host: str, port: int | None) -> bool:
        if {(host, None), (host, port)} & self._names:
            return True
        return any(p in (None, port) and host.endswith(suffix) for suffix, p in self._suffixes)


def view(state: State, registry: KeyRegistry) -> State:
    """The part of ``state`` that may leave this process: keys declared ``local`` stay. Keys that nobody declared here
    are passed on, since a service in the middle need not know what its neighbours agreed on."""
    local = registry.local
    return state if not local or local.isdisjoint(state) else state.drop(local)


def _normal(host: str) -> str:
    """``host`` as a resolver takes it: in lower case, without the dot of the root and the brackets of a literal, and in
    the ASCII form of an international name. No characters if it is none."""
    if host[:1] == "[" and host[-1:] == "]":
        host = host[1:-1]
    host = host.lower().removesuffix(".")
    if host.isascii():
        return host
    try:
        coded = host.encode("idna")
        # Resolvers differ in what they make of characters that stand for others: full-width digits, a sharp s.
        return coded.decode("ascii") if coded.decode("idna") == host else ""
    except UnicodeError:
        return ""


def _address(host: str) -> _Address | None:
    """The address that ``host`` is: without a zone, which says where it is and not whose, and IPv4 where it is that."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped or ipaddress.IPv6Address(int(address))


def _is_metadata(address: _Address) -> bool:
    if address in _METADATA_ADDRESSES:
        return True
    if isinstance(address, ipaddress.IPv4Address):
        return False
    if int(address) >> 32 in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) in _METADATA_ADDRESSES
    return address.sixtofour in _METADATA_ADDRESSES


def _split_port(item: str) -> tuple[str, int | None]:
    host, colon, port = item.rpartition(":")
    if colon and port.isdecimal() and int(port) < 65536:
        return host, int(port)
    return item, None


def _is_name(host: str) -> bool:
    labels = host.split(".")
    return len(host) < 254 and all(map(_is_label, labels)) and not _is_number(labels[-1])


def _is_label(label: str) -> bool:
    return 0 < len(label) < 64 and all((c.isalnum() and c.isascii()) or c in "-_" for c in label)


def _is_number(label: str) -> bool:
    """Whether a host that ends in ``label`` is an IPv4 address in disguise: 2852039166 and 0xa9fea9fe are
    169.254.169.254, as is 0251.0376.43518, to most resolvers."""
    return label.isdecimal() or label.startswith("0x")
