"""From an exporter's error to what a person can do about it. Pure: text in, text out."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["START", "advise", "briefly"]

START: Final = "start the collector, or name another one in OTEL_EXPORTER_OTLP_ENDPOINT"
_TO_HTTP: Final = "that port speaks HTTP/1: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or take the gRPC port (4317)"
_TO_GRPC: Final = "that port speaks gRPC: set OTEL_EXPORTER_OTLP_PROTOCOL=grpc, or take the HTTP port (4318)"
_TO_TLS: Final = "that port may want TLS: write https:// in OTEL_EXPORTER_OTLP_ENDPOINT"
_TO_PLAIN: Final = "that port does not speak TLS: write http:// in OTEL_EXPORTER_OTLP_ENDPOINT, or turn TLS on there"
_CA: Final = "name the authority that signed the collector's certificate in OTEL_EXPORTER_OTLP_CERTIFICATE"
_CA_HTTP: Final = f"{_CA}, and leave REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE unset: they go before it"
_NAME: Final = "the certificate is for another host: use the name that it was made for in OTEL_EXPORTER_OTLP_ENDPOINT"
_CLIENT: Final = (
    "the collector wants a certificate of yours: set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and "
    "OTEL_EXPORTER_OTLP_CLIENT_KEY, with OTEL_EXPORTER_OTLP_CERTIFICATE"
)
_HEADERS: Final = "set what it wants in OTEL_EXPORTER_OTLP_HEADERS"
_NO_SERVICE: Final = (
    "it does not take this signal there: check the endpoint, or turn the signal off, as by OTEL_METRICS_EXPORTER=none"
)

# (protocol, or None for both; pattern; advice), the first that fits: the more telling ones first.
_TABLE: Final[tuple[tuple[str | None, re.Pattern[str], str], ...]] = tuple(
    (protocol, re.compile(pattern, re.IGNORECASE), advice)
    for protocol, pattern, advice in (
        (None, r"certificate.?required|bad.certificate|handshake.failure|unknown.ca\b|unwrap failed", _CLIENT),
        (None, r"hostname mismatch|doesn't match|not valid for|verify.*(host|peer) ?name|target name", _NAME),
        ("http/protobuf", r"certificate.?verify.?failed|self.signed|unable to get (local )?issuer", _CA_HTTP),
        ("grpc", r"certificate.?verify.?failed|self.signed|unable to get (local )?issuer", _CA),
        (None, r"wrong.version.number|record layer failure|SSL_ERROR_SYSCALL|EOF occurred in violation", _TO_PLAIN),
        (None, r"could not find a suitable TLS CA|invalid path|No such file", _CA),
        ("grpc", r"http1|HTTP/1", _TO_HTTP),
        ("grpc", r"socket closed|connection reset|broken pipe|end of file", _TO_TLS),
        ("http/protobuf", r"BadStatusLine|connection aborted|connection reset|remote end closed", _TO_GRPC),
        ("http/protobuf", r"client sent an HTTP request to an HTTPS|\b400\b.*bad request", _TO_TLS),
        (None, r"UNAUTHENTICATED|PERMISSION_DENIED|\b401\b|\b403\b", _HEADERS),
        (None, r"UNIMPLEMENTED|NOT_FOUND|\b404\b|\b405\b|\b415\b", _NO_SERVICE),
        (None, r"refused|failed to connect|max retries|name or service|resolution|unreachable|no route", START),
        (None, r"DEADLINE_EXCEEDED|timed? ?out|no answer", "it takes connections and never answers: look at its log"),
        (None, r"RESOURCE_EXHAUSTED|\b429\b|\b503\b", "it is overloaded: look at its memory limiter and its queues"),
    )
)


_NEXT: Final = re.compile(r"^Transient error (.*) encountered while exporting .*$")


def advise(error: str, protocol: str | None) -> str:
    """What to do about ``error`` of an exporter that speaks ``protocol``; where nothing fits, where to look."""
    for only, pattern, advice in _TABLE:
        if only in (None, protocol) and pattern.search(error):
            return advice
    return "look at the collector's log, and at OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_PROTOCOL"


def briefly(error: str, limit: int = 300) -> str:
    """``error`` on one line of at most ``limit`` characters, without what an exporter says about its next attempt."""
    line = _NEXT.sub(r"\1", " ".join(error.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"
