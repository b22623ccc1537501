"""Request and response heads at an edge: what may pass, what is refused, and what is added. Pure.

Hop-by-hop fields (RFC 9110 §7.6.1) end here, both ways, as do all ``otelctx*`` fields. What a request says of the way
that it has come is believed from a trusted proxy only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from otelctx.asgi.types import Headers, Scope
from otelctx.errors import OtelctxError
from otelctx.gateway.failures import (
    BodyTooLarge,
    ExpectationFailed,
    HeadTooLarge,
    LoopDetected,
    MalformedRequest,
    MethodRefused,
    UnsupportedCoding,
)
from otelctx.semconv import GATEWAY_SESSION_HEADER, HEADER

__all__ = ["TARGET", "Limits", "RequestHead", "below", "read", "response_headers"]

# In the ASGI scope's extensions: the request target as it came, which the scope's own parts can't always give back.
TARGET: Final = "otelctx.target"
SESSION: Final = GATEWAY_SESSION_HEADER.encode()

_OURS: Final = HEADER.encode()
_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-authentication-info",
     b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
# Said anew for the worker; trace context by the propagator, and the length by who sends the body.
_RENEWED: Final = frozenset(
    (b"host", b"content-length", b"expect", b"via", b"traceparent", b"tracestate", SESSION, b"forwarded", b"x-real-ip",
     b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol",
     b"sec-websocket-accept")
)  # fmt: skip
_FORWARDED: Final = b"x-forwarded-"
# Two of these, and who stands behind could take the other one.
_ONCE: Final = (b"host", b"content-length", b"transfer-encoding", b"authorization", SESSION)
_NAMES: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z,]+")
_BAD_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_TARGET_OK: Final = re.compile(rb"/[\x21\x22\x24-\x7e]*|\*")
# A segment that leads up, in each spelling that somebody behind might take for one.
_UP: Final = re.compile(rb"(?:[/\\]|%2f|%5c)(?:\.|%2e){2}(?:[/\\;]|%2f|%5c|$)", re.IGNORECASE)
_HOST_OK: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_REFUSED_METHODS: Final = frozenset(("CONNECT", "TRACE"))
_NO_LENGTH: Final = (204, 304)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a request: header lines, bytes of them, bytes of the target, bytes of the body."""

    lines: int = 128
    head: int = 65536
    target: int = 16384
    body: int = 64 * 2**20


@dataclass(frozen=True, slots=True)
class RequestHead:
    """``target`` as sent; ``lines`` go on to the worker; ``length`` of the body, ``None`` if it is ``chunked`` or none.

    ``session`` is the session's id that the client states.
    """

    method: str
    target: bytes
    lines: Headers
    host: bytes
    length: int | None
    chunked: bool
    session: str | None


def read(scope: Scope, limits: Limits, *, proxy: bool, pseudonym: bytes) -> RequestHead:
    """Check an ASGI request's head and take it over.

    ``proxy``: the peer is a trusted one, whose word on the client goes on. ``pseudonym`` is this gateway's in ``Via``.
    Raises an :class:`~otelctx.errors.OtelctxError` with a status.
    """
    lines: Headers = [(name.lower(), value) for name, value in scope["headers"]]
    first = dict(reversed(lines))
    method: str = scope.get("method", "GET")
    error = _fault(method, scope.get("http_version"), lines, first, limits)
    if error is not None:
        raise error
    target = _target(scope)
    misplaced = target == b"*" and method != "OPTIONS"
    if len(target) > limits.target or misplaced or not _TARGET_OK.fullmatch(target):
        raise MalformedRequest("the request target is too long, or has characters that have no place in one")
    via = b", ".join(value for name, value in lines if name == b"via")
    if pseudonym in via:
        raise LoopDetected("an upstream of this gateway leads back to it: see --upstream")
    host = first.get(b"host", b"")
    kept = _passing(lines, renewed=True)
    kept += _came_by(scope, lines, host, proxy)
    kept.append((b"via", _via(via if proxy else b"", scope, pseudonym)))
    length = first.get(b"content-length")
    return RequestHead(
        method,
        target,
        kept,
        host,
        None if length is None else int(length),
        b"transfer-encoding" in first,
        _session(first, target),
    )


def below(prefix: bytes, target: bytes) -> bytes:
    """The target of a request to an upstream whose own path is ``prefix``. Raises :class:`MalformedRequest` for one
    that could lead out of it: a neighbour's path there is not this gateway's to give away."""
    if not prefix:
        return target
    if _UP.search(target.partition(b"?")[0]):
        raise MalformedRequest("the request target leads up, out of what is served here")
    return prefix if target == b"*" else prefix + target


def response_headers(headers: Headers, status: int) -> Headers:
    """Those of an upstream's response that go on to the client. A server adds the framing of its own."""
    passing = _passing(headers, renewed=False)
    if status in _NO_LENGTH:  # of a body that isn't sent
        return [line for line in passing if line[0] != b"content-length"]
    return passing


def _fault(
    method: str, http: str | None, lines: Headers, first: dict[bytes, bytes], limits: Limits
) -> OtelctxError | None:
    if len(lines) > limits.lines or sum(len(name) + len(value) for name, value in lines) > limits.head:
        return HeadTooLarge(f"a request has at most {limits.lines} header lines and {limits.head} bytes of them")
    if method in _REFUSED_METHODS:
        return MethodRefused(f"{method} is not for this server")
    names = [name for name, _ in lines]
    if b"host" not in first and http == "1.1":  # RFC 9112 §3.2
        return MalformedRequest("a request has a host")
    if names and (b"" in names or not _NAMES.fullmatch(b",".join(names)) or b"," in b"".join(names)):
        return MalformedRequest("a header's name has characters that have no place in one")
    if _BAD_VALUE.search(b"".join([value for _, value in lines])):
        return MalformedRequest("a header's value has control characters")
    if len(first) < len(lines):
        for name in _ONCE:
            if names.count(name) > 1:
                return MalformedRequest(f"{name.decode()} is there more than once")
    for name, check in _CHECKS.items():
        if name in first and (found := check(first, limits)) is not None:
            return found
    return None


def _length(first: dict[bytes, bytes], limits: Limits) -> OtelctxError | None:
    value = first[b"content-length"]
    if not value.isdigit() or len(value) > 18:
        return MalformedRequest("content-length is no number")
    if b"transfer-encoding" in first:
        return MalformedRequest("content-length and transfer-encoding contradict each other")
    if int(value) > limits.body:
        return BodyTooLarge(f"the request body is larger than {limits.body} bytes")
    return None


def _coding(first: dict[bytes, bytes], limits: Limits) -> OtelctxError | None:
    if first[b"transfer-encoding"].strip().lower() != b"chunked":
        return UnsupportedCoding("no transfer coding but chunked is understood here")
    return None


def _expect(first: dict[bytes, bytes], limits: Limits) -> OtelctxError | None:
    if first[b"expect"].strip().lower() != b"100-continue":
        return ExpectationFailed("nothing but 100-continue can be expected here")
    return None


def _host(first: dict[bytes, bytes], limits: Limits) -> OtelctxError | None:
    return None if _HOST_OK.fullmatch(first[b"host"]) else MalformedRequest("host is no host name or address")


_CHECKS: Final[dict[bytes, Callable[[dict[bytes, bytes], Limits], OtelctxError | None]]] = {
    b"content-length": _length,
    b"transfer-encoding": _coding,
    b"expect": _expect,
    b"host": _host,
}


def _target(scope: Scope) -> bytes:
    extensions: dict[str, Any] = scope.get("extensions") or {}
    whole: bytes | None = extensions.get(TARGET)
    if whole is not None and whole[:1] in (b"/", b"*"):
        return whole
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string") or b""
    return path.partition(b"?")[0] + b"?" + query if query else path.partition(b"?")[0]


def _passing(lines: Headers, *, renewed: bool) -> Headers:
    """The end-to-end fields."""
    named: set[bytes] = set()
    for name, value in lines:
        if name == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    # Whoever could have any field dropped by naming it could have the worker see a request without its credentials.
    named -= {b"authorization", b"cookie", b"content-type", b"cache-control"}
    return [
        line
        for line in lines
        if (name := line[0]) not in _HOP
        and name not in named
        and not name.startswith(_OURS)
        and not (renewed and (name in _RENEWED or name.startswith(_FORWARDED)))
    ]


def _came_by(scope: Scope, lines: Headers, host: bytes, proxy: bool) -> Headers:
    """``x-forwarded-for``, ``-proto`` and ``-host``: a trusted proxy's, continued, or what is seen from here.

    A proxy may add a line of its own behind those that it was sent: of addresses all count, in their order, and of the
    others the last.
    """
    peer = scope.get("client")
    address = str(peer[0]).encode("latin-1", "replace") if peer else b"unknown"
    scheme = _SCHEMES.get(scope.get("scheme", "http"), b"http")
    said = [line for line in lines if line[0].startswith(_FORWARDED) and line[1]] if proxy else []
    way = [value for name, value in said if name == b"x-forwarded-for"]
    last = dict(said)
    made = [
        (b"x-forwarded-for", b", ".join([*way, address])),
        (b"x-forwarded-proto", last.get(b"x-forwarded-proto", scheme)),
    ]
    seen = last.get(b"x-forwarded-host", host)
    return [*made, (b"x-forwarded-host", seen)] if seen else made


_SCHEMES: Final = {"http": b"http", "https": b"https", "ws": b"http", "wss": b"https"}


def _via(before: bytes, scope: Scope, pseudonym: bytes) -> bytes:
    own = str(scope.get("http_version", "1.1")).encode() + b" " + pseudonym
    return before + b", " + own if before else own


def _session(first: dict[bytes, bytes], target: bytes) -> str | None:
    """Of the header, else of the path in which our own workers have it."""
    stated = first.get(SESSION)
    if stated is None and target.startswith(_SESSIONS):
        stated = target[len(_SESSIONS) :].partition(b"?")[0].partition(b"/")[0]
    return None if stated is None else stated.decode("latin-1")


_SESSIONS: Final = b"/v1/sessions/"
