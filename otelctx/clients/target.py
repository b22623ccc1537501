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


@dataclass(frozen=True, slots=True)
class Target:
    """``path`` and ``query`` are as sent, percent-encoded; ``port`` is the scheme's own unless the URL has one.

    ``body`` is the length in bytes of a body that can be sent again, ``None`` for any other.
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
        names: Iterable[bytes],
        attempt: int,
    ) -> Target:
        """``names`` are the request's header names in lower case."""
        path, _, query = raw_path.decode("latin-1").partition("?")
        found = frozenset(names)
        conditional = any(name.startswith(b"if-") for name in found)
        idempotent = not conditional and (method in ("GET", "HEAD") or b"idempotency-key" in found)
        body = None if b"upgrade" in found else body  # a handshake is no request that could be repeated
        port = port if port is not None else _PORTS.get(scheme, 0)
        return cls(method, scheme, host, port, path, query, userinfo, body, idempotent, attempt)

    @property
    def span_name(self) -> str:
        return method_names(self.method)[1]

    def url(self) -> str:
        """``url.full`` without credentials, and without the values of query parameters that are some."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS.get(self.scheme) else f":{self.port}"
        credentials = _CREDENTIALS if self.userinfo else ""
        query = f"?{sanitize.query(self.query, _MAX_URL)}" if self.query else ""
        return sanitize.text(f"{self.scheme}://{credentials}{host}{port}{self.path}{query}", _MAX_URL)

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
