"""gRPC's status codes, as the conventions for RPC spans and the handshake see them."""

from __future__ import annotations

from typing import Any, Final

from grpc import StatusCode

__all__ = ["ABORTED_BY", "SERVER_ERRORS", "by_this_side", "http_status", "name_of"]

# https://opentelemetry.io/docs/specs/semconv/rpc/grpc/: of a server's answers only these are its own failures.
SERVER_ERRORS: Final = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)
ABORTED_BY: Final = StatusCode.FAILED_PRECONDITION  # how a frame without its base is refused
_NAMES: Final = {code.value[0]: code.name for code in StatusCode}
# What a status is to the sender, which is written in terms of HTTP. Others say nothing about a context that was sent.
_HTTP: Final = {"OK": 200, "FAILED_PRECONDITION": 412}
# The words of grpc.aio, which takes any CANCELLED for a cancellation: by these it is one of this side.
_LOCAL: Final = ("Locally cancelled", "Cancelled upon garbage collection")
_TOO_LARGE: Final = "metadata size exceeds"  # gRPC core's words, by RESOURCE_EXHAUSTED, which applications use too


def name_of(code: Any) -> str:
    """``code`` as a ``StatusCode``, its number, or nothing, which is OK. Others are UNKNOWN, as gRPC has it."""
    if code is None:
        return "OK"
    if isinstance(code, StatusCode):
        return code.name
    return _NAMES.get(code, "UNKNOWN") if isinstance(code, int) else "UNKNOWN"


def http_status(name: str, details: str | None) -> int:
    """The HTTP status that tells the sender the same."""
    if name == "RESOURCE_EXHAUSTED" and _TOO_LARGE in (details or ""):
        return 431
    return _HTTP.get(name, 500)


def by_this_side(details: str | None) -> bool:
    """Whether a call of ``grpc.aio`` that ended as CANCELLED was cancelled here."""
    return (details or "").startswith(_LOCAL)
