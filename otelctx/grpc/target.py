"""Where a channel goes: the name or the addresses in its target, for the egress policy and for spans."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from otelctx.policy.egress import Egress

__all__ = ["UNKNOWN", "Destination", "Target", "parse"]

_PORT: Final = 443  # gRPC's own default
_DNS: Final = frozenset(("dns", "passthrough"))
_ADDRESSES: Final = frozenset(("ipv4", "ipv6"))
_SOCKETS: Final = frozenset(("unix", "unix-abstract", "vsock"))
_BALANCED: Final = frozenset(("xds", "google-c2p"))

Destination = tuple[str, int]
NOBODY: Final[Destination] = ("", 0)  # no policy allows it


@dataclass(frozen=True, slots=True)
class Target:
    """``address`` and ``port`` are for spans. ``hosts`` are those that a call may reach; ``listed``: what stands behind
    the name is only known to somebody else, so that the name itself must be allowed."""

    address: str
    port: int | None
    hosts: tuple[Destination, ...]
    listed: bool = False

    def destination(self, egress: Egress) -> Destination:
        """Host and port for the exchange: of several hosts one that may not receive our context, if there is one."""
        if self.listed and not egress.listed(*self.hosts[0]):
            return NOBODY
        for host, port in self.hosts:
            if not egress.allows(host, port):
                return host, port
        return self.hosts[0]


UNKNOWN: Final = Target("", None, (NOBODY,))


@lru_cache(maxsize=256)
def parse(target: str) -> Target:
    """A target as gRPC reads it: ``dns:///chat:50051``, ``chat:50051``, ``ipv4:10.0.0.1:50051,10.0.0.2:50051``,
    ``unix:/run/chat.sock``, ``xds:///chat``.

    A socket of this machine has no name that a policy could know, so no context goes there unless a target is given
    by hand.
    """
    scheme, colon, rest = target.partition(":")
    if colon and scheme in _ADDRESSES:
        hosts = tuple([_split(part) for part in rest.lstrip("/").split(",")])
        return Target(*hosts[0], hosts)
    if colon and scheme in _SOCKETS:
        return Target(rest.removeprefix("//"), None, (NOBODY,))
    if colon and scheme in _BALANCED:
        host, port = _split(_endpoint(rest))
        return Target(host, port, ((host, port),), listed=True)
    host, port = _split(_endpoint(rest) if colon and scheme in _DNS else target)
    return Target(host, port, ((host, port),))


def _endpoint(rest: str) -> str:
    """``//authority/endpoint`` or the endpoint alone."""
    return rest[2:].partition("/")[2] if rest.startswith("//") else rest


def _split(text: str) -> Destination:
    text = text.replace("%5B", "[").replace("%5D", "]")
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") > 1:  # an IPv6 address without brackets has no port
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    return host, int(port) if port.isdecimal() and len(port) < 6 else _PORT
