"""``server.address`` and ``server.port`` on metrics, for hosts that are known.

The conventions have them opt-in there, as the Host header is what a client says: whoever sends a new one each time
makes a new series each time. So the hosts that may stand on a metric are listed, and any other has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import otelctx.semconv as semconv
from otelctx.errors import ConfigError

__all__ = ["known_hosts"]


def known_hosts(hosts: str | Iterable[str]) -> Mapping[bytes, dict[str, Any]] | None:
    """Host header in lower case → attributes; ``None`` if there are none.

    Each is ``name`` or ``name:port``, as clients send it. Raises :class:`~otelctx.errors.ConfigError` for what can't be
    one.
    """
    found: dict[bytes, dict[str, Any]] = {}
    for host in [hosts] if isinstance(hosts, str) else hosts:
        name, colon, port = host.rpartition(":") if not host.endswith("]") else ("", "", host)
        if not colon:
            name, port = host, ""
        if not name or not host.isascii() or "/" in host or (colon and not port.isdigit()):
            raise ConfigError(f"metric_hosts: {host!r} is no host as clients send it; give 'name' or 'name:port'")
        attributes: dict[str, Any] = {semconv.SERVER_ADDRESS: name.strip("[]").lower()}
        if port:
            attributes[semconv.SERVER_PORT] = int(port)
        found[host.lower().encode()] = attributes
    return found or None
