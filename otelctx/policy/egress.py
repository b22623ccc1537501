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
_METADATA_NAMES: Final = frozenset(
    ("metadata", "metadata.google.internal", "metadata.goog", "metadata.azure.internal", "metadata.tencentyun.com",
     "instance-data", "instance-data.ec2.internal")
)  # fmt: skip
_METADATA_ADDRESSES: Final = frozenset(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16",
                 "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254")
)  # fmt: skip
_MAX_DECISIONS: Final = 4096


class Egress:
    """Decides per origin; decisions are remembered.

    ``allow`` adds host names, ``*.suffix`` patterns, addresses or CIDR networks, each with an optional ``:port``.
    """

    __slots__ = ("_decided", "_names", "_networks", "_suffixes")

    def __init__(self, allow: Iterable[str] = ()) -> None:
        """Raises :class:`~otelctx.errors.ConfigError` for an entry that is none of these."""
        self._names: set[tuple[str, int | None]] = set()
        self._suffixes: set[tuple[str, int | None]] = set()
        self._networks: list[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, int | None]] = []
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
        if host.startswith("*.") and _is_name(host[2:]):
            self._suffixes.add((host[1:], port))
        elif _is_name(host):
            self._names.add((host, port))
        else:
            raise ConfigError(
                f"OTELCTX_EGRESS_ALLOW: {item!r} is no host name, *.suffix, address or network, with or without :port"
            )

    def allows(self, host: str, port: int | None = None) -> bool:
        """Whether frames and our baggage may go to ``host``, as the URL has it."""
        key = (host, port)
        found = self._decided.get(key)
        if found is None:
            if len(self._decided) >= _MAX_DECISIONS:
                self._decided.clear()
            found = self._decided[key] = self._decide(host.lower().rstrip(".").strip("[]"), port)
        return found

    def _decide(self, host: str, port: int | None) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return self._decide_name(host, port)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if address in _METADATA_ADDRESSES:
            return False
        if any(p in (None, port) and address.version == n.version and address in n for n, p in self._networks):
            return True
        return any(address.version == inside.version and address in inside for inside in _INSIDE_NETWORKS)

    def _decide_name(self, host: str, port: int | None) -> bool:
        if host in _METADATA_NAMES or not _is_name(host):
            return False
        if {(host, None), (host, port)} & self._names:
            return True
        if any(p in (None, port) and host.endswith(suffix) for suffix, p in self._suffixes):
            return True
        return "." not in host or host.endswith(_INSIDE)


def view(state: State, registry: KeyRegistry) -> State:
    """The part of ``state`` that may leave this process: keys declared ``local`` stay. Keys that nobody declared here
    are passed on, since a service in the middle need not know what its neighbours agreed on."""
    local = registry.local
    return state if local.isdisjoint(state) else state.drop(local)


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
