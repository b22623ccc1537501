"""Where a request goes: what its span says of it, and what its frames depend on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from otelctx import semconv
from otelctx.telemetry import sanitize
from otelctx.telemetry.http import method_names

__all__ = ["Target"]

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_CREDENTIALS: Final = "REDACTED:REDACTED@"
_MAX_URL: Final = 2048
_RETRY: Final = b"x-stainless-retry-count"  # of OpenAI's clients, whose retries are new requests
# With these a request can not be sent again by us: it is no request but a handshake, or its body waits for a 100.
_ONCE: Final = frozenset((b"upgrade", b"expect"))


@dataclass(frozen=True, slots=True)
class Target:
    """``path`` and ``query`` are as sent, percent-encoded; ``port`` is the scheme's own unless the URL has one.

    - ``body``: the length in bytes of a body that can be sent again, ``None`` for any other
    - ``attempt``: how often the request has been sent before
    - ``full``: only a whole frame will do, since the library may send the very same bytes again
    """

    method: str
    scheme: str
    host: str
    port: int
    path: str
    query: str
    userinfo: bool
    body: int | None
    idempotent: bool
    attempt: int
    full: bool

    @classmethod
    def of(
        cls,
        *,
        method: str,
        scheme: str,
        host: str,
        port: int | None,
        raw_path: bytes,
        userinfo: bool,
        body: int | None,
        headers: Iterable[tuple[bytes, bytes]],
        sent: int,
        full: bool = False,
    ) -> Target:
        """``sent`` is how often this very request has been sent as the library knows; its headers may know more."""
        path, _, query = raw_path.decode("latin-1").partition("?")
        found = {name.lower(): value for name, value in headers}
        conditional = any(name.startswith(b"if-") for name in found)
        idempotent = not conditional and (method in ("GET", "HEAD") or b"idempotency-key" in found)
        if body is not None and not _ONCE.isdisjoint(found):
            body = None
        port = port if port is not None else _PORTS.get(scheme, 0)
        retried = found.get(_RETRY, b"0")
        attempt = sent or (int(retried) if retried.isdigit() and len(retried) < 4 else 0)
        return cls(method, scheme, host, port, path, query, userinfo, body, idempotent, attempt, full)

    @property
    def span_name(self) -> str:
        return method_names(self.method)[1]

    def url(self) -> str:
        """``url.full`` without credentials, and without the values of query parameters that are some."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS.get(self.scheme) else f":{self.port}"
        credentials = _CREDENTIALS if self.userinfo else ""
        query = f"?{sanitize.query(self.query, _MAX_URL)}" if self.query else ""
        return sanitize.path(f"{self.scheme}://{credentials}{host}{port}{self.path}{query}", _MAX_URL)

    def point(self) -> dict[str, Any]:
        """The attributes that the duration and the span share."""
        return {
            semconv.HTTP_REQUEST_METHOD: method_names(self.method)[0],
            semconv.SERVER_ADDRESS: self.host,
            semconv.SERVER_PORT: self.port,
        }

    def attributes(self) -> dict[str, Any]:
        """What the CLIENT span has from its start."""
        values = self.point()
        values[semconv.URL_FULL] = self.url()
        if values[semconv.HTTP_REQUEST_METHOD] != self.method:
            values[semconv.HTTP_REQUEST_METHOD_ORIGINAL] = sanitize.text(self.method, 64)
        return values
