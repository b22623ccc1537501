"""Attributes of a request, after the stable HTTP conventions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import otelctx.semconv as semconv
from otelctx.asgi.headers import Inbound
from otelctx.telemetry import sanitize
from otelctx.telemetry.http import protocol_version, scheme_name

__all__ = ["start_attributes"]

OTHER: Final = "_OTHER"
_MAX_AGENT: Final = 256
_MAX_HOST: Final = 261  # a name of 255 and a port
_MAX_ADDRESS: Final = 64


@lru_cache(maxsize=512)
def _authority(authority: bytes, scheme: str) -> tuple[str, int | None]:
    """Address and port of a Host header; the port only where it isn't the scheme's own."""
    host = authority.decode("latin-1")
    address, colon, port = host.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or address.endswith(":"):
        address, port = host, ""
    number = int(port[:6]) if port and int(port[:6]) < 65536 else None
    default = 443 if scheme in ("https", "wss") else 80
    return sanitize.text(address.strip("[]"), 255), None if number == default else number


@lru_cache(maxsize=512)
def _common(
    method: str, scheme: str, version: str | None, host: bytes | None, agent: bytes | None
) -> dict[str, str | int]:
    """What the requests of one client to one host share; of few clients or many, it is bounded. Never to be changed."""
    attributes: dict[str, str | int] = {
        semconv.HTTP_REQUEST_METHOD: method,
        semconv.URL_SCHEME: scheme_name(scheme),
    }
    if known := protocol_version(version):
        attributes[semconv.NETWORK_PROTOCOL_VERSION] = known
    if host is not None:
        address, port = _authority(host, scheme)
        attributes[semconv.SERVER_ADDRESS] = address
        if port is not None:
            attributes[semconv.SERVER_PORT] = port
    if agent is not None:
        attributes[semconv.USER_AGENT] = sanitize.text(agent, _MAX_AGENT)
    return attributes


def start_attributes(scope: Mapping[str, Any], inbound: Inbound, method: str, client: str | None) -> dict[str, Any]:
    """What is known when a request arrives, and so what a sampler can see.

    ``client`` is the address behind trusted proxies, if one was resolved.
    """
    host, agent = inbound.get(b"host"), inbound.get(b"user-agent")
    attributes = _common(
        method,
        scope.get("scheme", "http"),
        scope.get("http_version"),
        None if host is None else host[:_MAX_HOST],
        None if agent is None else agent[: _MAX_AGENT + 1],
    ).copy()
    attributes[semconv.URL_PATH] = sanitize.path(scope.get("path", ""))
    if method == OTHER:
        attributes[semconv.HTTP_REQUEST_METHOD_ORIGINAL] = sanitize.text(scope.get("method", ""), 64)
    if query := scope.get("query_string"):
        attributes[semconv.URL_QUERY] = sanitize.query(query)
    peer = scope.get("client")
    if peer and peer[0]:
        # A server may have it from a header that anybody can write.
        attributes[semconv.NETWORK_PEER_ADDRESS] = nearest = sanitize.text(peer[0], _MAX_ADDRESS)
        port = peer[1]
        if isinstance(port, str):  # Granian's is text
            port = int(port) if port.isdecimal() and len(port) <= 5 else None
        if port is not None:
            attributes[semconv.NETWORK_PEER_PORT] = port
        attributes[semconv.CLIENT_ADDRESS] = nearest
        if client == peer[0]:
            return attributes
    if client is not None:
        attributes[semconv.CLIENT_ADDRESS] = sanitize.text(client, _MAX_ADDRESS)
    return attributes
