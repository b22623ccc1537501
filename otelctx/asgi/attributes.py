"""Attributes of a request, after the stable HTTP conventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import otelctx.semconv as semconv
from otelctx.asgi.headers import Inbound
from otelctx.telemetry import sanitize
from otelctx.telemetry.http import METHODS, method_names, protocol_version, scheme_name

__all__ = ["Kind", "kind_of", "start_attributes"]

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


@dataclass(frozen=True, slots=True)
class Kind:
    """What the requests of one client to one host share: the names by which they are counted, ``name`` being the first
    word of the span's, and ``attributes`` and ``point`` with which span and histogram point begin. Never to be changed.
    """

    method: str
    name: str
    scheme: str
    attributes: dict[str, str | int]
    point: dict[str, str]


@lru_cache(maxsize=512)
def _kind(method: str, scheme: str, version: str | None, host: bytes | None, agent: bytes | None) -> Kind:
    """Bounded in number and in bytes: what a client chooses of it is one of a few names by now, or cut."""
    known, name = method_names(method)
    point = {semconv.HTTP_REQUEST_METHOD: known, semconv.URL_SCHEME: scheme}
    if version is not None:
        point[semconv.NETWORK_PROTOCOL_VERSION] = version
    attributes: dict[str, str | int] = {**point}
    if host is not None:
        address, port = _authority(host, scheme)
        attributes[semconv.SERVER_ADDRESS] = address
        if port is not None:
            attributes[semconv.SERVER_PORT] = port
    if agent is not None:
        attributes[semconv.USER_AGENT] = sanitize.text(agent, _MAX_AGENT)
    return Kind(known, name, scheme, attributes, point)


def kind_of(scope: Mapping[str, Any], inbound: Inbound) -> Kind:
    """The :class:`Kind` of a request; a websocket's is that of its GET."""
    method = scope.get("method", "GET")
    host, agent = inbound.get(b"host"), inbound.get(b"user-agent")
    return _kind(
        method if method in METHODS else OTHER,
        scheme_name(scope.get("scheme", "http")),
        protocol_version(scope.get("http_version")),
        None if host is None else host[:_MAX_HOST],
        None if agent is None else agent[: _MAX_AGENT + 1],
    )


def start_attributes(kind: Kind, scope: Mapping[str, Any], client: str | None) -> dict[str, Any]:
    """What is known when a request of this ``kind`` arrives, and so what a sampler can see.

    ``client`` is the address behind trusted proxies, if one was resolved.
    """
    attributes: dict[str, Any] = kind.attributes.copy()
    attributes[semconv.URL_PATH] = sanitize.path(scope.get("path", ""))
    if kind.method == OTHER:
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
