"""What can go wrong at an edge, each with the status and the code with which it is answered."""

from __future__ import annotations

from otelctx.errors import InvalidRequest, OtelctxError, Overloaded

__all__ = [
    "BadResponse",
    "BodyTooLarge",
    "ClientGone",
    "ConnectFailed",
    "ConnectTimeout",
    "Draining",
    "ExpectationFailed",
    "HeadTooLarge",
    "LoopDetected",
    "MalformedRequest",
    "MethodRefused",
    "NoUpstream",
    "RequestTimeout",
    "UnsupportedCoding",
    "UpstreamClosed",
    "UpstreamFailure",
    "UpstreamTimeout",
]


class _Closing(InvalidRequest):
    """The request is not read to its end, so its connection can't be used for another one."""

    def headers(self) -> list[tuple[str, str]]:
        return [("connection", "close")]


class MalformedRequest(_Closing):
    """The request's head is not HTTP as RFC 9110 and 9112 have it, or two parties could read it in two ways: 400."""

    default_code = "malformed_request"


class HeadTooLarge(_Closing):
    """Too many header lines, or too many bytes of them: 431."""

    status = 431
    default_code = "header_fields_too_large"


class BodyTooLarge(_Closing):
    """The body is over ``max_body``: 413."""

    status = 413
    default_code = "request_too_large"


class RequestTimeout(_Closing):
    """The client has stopped sending its body: 408."""

    status = 408
    default_code = "request_timeout"


class MethodRefused(_Closing):
    """CONNECT and TRACE: 405. The one would make a tunnel of the edge, the other shows what it adds to a request."""

    status = 405
    default_code = "method_not_allowed"


class ExpectationFailed(_Closing):
    """An ``Expect`` other than ``100-continue``: 417."""

    status = 417
    default_code = "expectation_failed"


class UnsupportedCoding(_Closing):
    """A transfer coding other than ``chunked``: 501. Undone by nobody here, it would become part of the content."""

    status = 501
    default_code = "transfer_coding_unsupported"


class LoopDetected(OtelctxError):
    """The request has been here before: 508. An upstream of this gateway leads back to it."""

    status = 508
    default_code = "loop_detected"


class NoUpstream(Overloaded):
    """No upstream can take the request: 503 with Retry-After."""

    default_code = "no_upstream"


class Draining(Overloaded):
    """This gateway is about to end: 503 with Retry-After."""

    default_code = "draining"

    def headers(self) -> list[tuple[str, str]]:
        return [*super().headers(), ("connection", "close")]


class UpstreamFailure(OtelctxError):
    """An upstream could not be used to the end. ``reason`` is a short stable word, fit for a metric."""

    status = 502
    default_code = "upstream_failed"
    reason = "failed"


class ConnectFailed(UpstreamFailure):
    """There was no connection, so nothing of the request has been sent: 502."""

    default_code = "upstream_unreachable"
    reason = "connect"


class ConnectTimeout(ConnectFailed):
    """There was no connection in time: 504."""

    status = 504
    default_code = "upstream_timeout"


class UpstreamClosed(UpstreamFailure):
    """The connection ended before the response did: 502, or an aborted stream."""

    default_code = "upstream_closed"
    reason = "closed"


class BadResponse(UpstreamFailure):
    """What came is no HTTP response: 502."""

    default_code = "upstream_malformed"
    reason = "malformed"


class UpstreamTimeout(UpstreamFailure):
    """The upstream has been silent for too long: 504, or an aborted stream."""

    status = 504
    default_code = "upstream_timeout"
    reason = "timeout"


class ClientGone(Exception):
    """The client has closed its connection. No error of anybody."""
