"""What the spans and counters of both ends of an HTTP exchange have in common."""

from __future__ import annotations

import traceback
from typing import Final

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span

from otelctx.telemetry import sanitize
from otelctx.telemetry.instruments import instruments

__all__ = [
    "METHODS",
    "count_frame",
    "error_type",
    "method_names",
    "protocol_version",
    "record_exception",
    "scheme_name",
]

_METHODS: Final = {
    name: (name, name)
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY")
}
METHODS: Final = frozenset(_METHODS)
_UNKNOWN: Final = ("_OTHER", "HTTP")
_SCHEMES: Final = {name: name for name in ("http", "https", "ws", "wss")}
# "1" is what Granian calls HTTP/1.0.
_VERSIONS: Final = {"1": "1.0", "1.0": "1.0", "1.1": "1.1", "2": "2", "2.0": "2", "3": "3", "3.0": "3"}
_MAX_STACK: Final = 8192


def method_names(method: str) -> tuple[str, str]:
    """``(http.request.method, first word of the span's name)``. Anybody can send any method: unknown ones are one."""
    return _METHODS.get(method, _UNKNOWN)


def scheme_name(scheme: str) -> str:
    """``url.scheme``. Some servers take it from X-Forwarded-Proto as it is, so unknown ones are one: ``_OTHER``."""
    return _SCHEMES.get(scheme, "_OTHER")


def protocol_version(version: str | None) -> str | None:
    """``network.protocol.version`` of HTTP as the conventions write it; ``None`` for what is no version of it."""
    return None if version is None else _VERSIONS.get(version)


def error_type(error: BaseException) -> str:
    """``error.type`` of an exception: its class, with its module unless that is builtins."""
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def record_exception(span: Span, error: BaseException) -> None:
    """The standard ``exception`` event, bounded and encodable: a message may hold anything that a client has sent."""
    if not span.is_recording():
        return
    try:
        message = str(error)
    except Exception:
        message = "(its text can't be made)"
    stack = "".join(traceback.format_exception(error, limit=-24))
    span.add_event(
        "exception",
        {
            "exception.type": error_type(error),
            "exception.message": sanitize.text(message),
            "exception.stacktrace": sanitize.text(stack[-_MAX_STACK:], _MAX_STACK),
        },
    )


def count_frame(meter_provider: MeterProvider | None, kind: str, direction: str, size: int) -> None:
    """Count a frame or an ack of ``kind`` with ``size`` characters; ``direction`` is ``sent`` or ``received``."""
    instruments(meter_provider).tally.add(kind, direction, size)
