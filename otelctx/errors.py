"""Every error that otelctx raises, and what an HTTP server should answer for it.

    OtelctxError
    ├── ConfigError                    a setting or declaration is wrong
    ├── ContextTypeError               a context value has the wrong type
    ├── ContextLimitExceeded           a context value or the whole context is too big
    ├── ProtocolError                  a peer sent something that isn't otelctx/1
    │   ├── MalformedFrame
    │   ├── OversizedFrame
    │   ├── UnknownBase
    │   ├── RootMismatch
    │   └── UntrustedClient
    ├── InvalidRequest          400    a request that can't be understood
    ├── CapacityError                  a limit of this worker was reached
    │   ├── TokenLimitExceeded  400
    │   ├── StreamRequired      422
    │   ├── BreakerOpen         422
    │   ├── BudgetExhausted     503
    │   ├── ArenaExhausted      503
    │   └── Overloaded          503
    ├── StoreError                     the session store
    │   ├── SessionNotFound     404
    │   ├── SessionBusy         409
    │   │   └── SessionDeadline 409
    │   ├── VersionConflict     409
    │   ├── VersionNotFound     404
    │   ├── StaleView
    │   └── StoreUnavailable    503
    ├── EngineFailed            500    the engine failed at a request, or as a whole
    └── PolicyViolation         403

An error carries fields, not only text. ``status`` is ``None`` where no HTTP answer makes sense; an error with a status
that escapes an application before its response starts is answered by ``ContextMiddleware`` with
:meth:`OtelctxError.body`.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "ArenaExhausted",
    "BreakerOpen",
    "BudgetExhausted",
    "CapacityError",
    "ConfigError",
    "ContextLimitExceeded",
    "ContextTypeError",
    "EngineFailed",
    "InvalidRequest",
    "MalformedFrame",
    "OtelctxError",
    "Overloaded",
    "OversizedFrame",
    "PolicyViolation",
    "ProtocolError",
    "RootMismatch",
    "SessionBusy",
    "SessionDeadline",
    "SessionNotFound",
    "StaleView",
    "StoreError",
    "StoreUnavailable",
    "StreamRequired",
    "TokenLimitExceeded",
    "UnknownBase",
    "UntrustedClient",
    "VersionConflict",
    "VersionNotFound",
]


class OtelctxError(Exception):
    """Base of all. ``message`` is the text; ``code`` and ``param`` go into the HTTP body as OpenAI's API names them."""

    status: ClassVar[int | None] = None
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else self.default_code
        self.param = param
        self.details = details

    def body(self) -> dict[str, Any]:
        """The answer in the shape of OpenAI's API: ``{"error": {message, type, param, code, …details}}``."""
        return {
            "error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code} | self.details
        }

    def headers(self) -> list[tuple[str, str]]:
        """Extra response headers, such as ``Retry-After``."""
        return []


class ConfigError(OtelctxError):
    """A setting or declaration is wrong; the message says which, and what to write instead."""


class ContextTypeError(OtelctxError, TypeError):
    """A context value is not of its key's type. The message names key, both types and where the key was declared."""


class ContextLimitExceeded(OtelctxError, ValueError):
    """A context value, or the context as a whole, is larger than a frame may be. Raised where the value is set."""


class ProtocolError(OtelctxError):
    """A peer sent something that is not otelctx/1. ``reason`` is a short stable word, fit for a metric attribute."""

    reason: ClassVar[str] = "protocol"


class MalformedFrame(ProtocolError):
    """The bytes do not follow the wire format."""

    reason = "malformed"


class OversizedFrame(ProtocolError):
    """Header, message, entry count, key or value is over its limit."""

    reason = "oversized"


class UnknownBase(ProtocolError):
    """A DELTA or REF refers to a state that this process does not hold."""

    reason = "unknown_base"


class RootMismatch(ProtocolError):
    """The state that results from a frame does not have the root that the frame states."""

    reason = "root"


class UntrustedClient(ProtocolError):
    """The frame's MAC does not verify, or an unsigned frame came from a client that is not trusted."""

    reason = "untrusted"


class InvalidRequest(OtelctxError, ValueError):
    """A request that can't be understood: HTTP 400."""

    status = 400
    type = "invalid_request_error"
    default_code = "invalid_request"


class CapacityError(OtelctxError):
    """A limit of this worker was reached."""

    status = 503


class TokenLimitExceeded(CapacityError):
    """The prompt does not fit into the context window: HTTP 400, code ``context_length_exceeded``.

    ``details`` holds the numbers: ``n_prompt_tokens`` or ``n_prompt_tokens_at_least`` (token), ``max_context`` (token),
    ``max_new_tokens_requested`` (token or ``None``), ``max_new_tokens_allowed`` (token), ``policy`` (overflow mode).
    """

    status = 400
    type = "invalid_request_error"
    default_code = "context_length_exceeded"


class StreamRequired(CapacityError):
    """Under pressure, a long request must be streamed: HTTP 422."""

    status = 422
    type = "invalid_request_error"
    default_code = "stream_required"


class BreakerOpen(CapacityError):
    """The breaker refuses requests of this length for now: HTTP 422."""

    status = 422
    type = "invalid_request_error"
    default_code = "breaker_open"


class _Retryable(CapacityError):
    def __init__(self, message: str, *, retry_after: float = 1.0, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.retry_after = retry_after

    def headers(self) -> list[tuple[str, str]]:
        return [("retry-after", str(max(1, round(self.retry_after))))]


class BudgetExhausted(_Retryable):
    """The memory reserved for KV is used up: HTTP 503 with Retry-After."""

    default_code = "insufficient_memory"


class ArenaExhausted(_Retryable):
    """No free page is left for token windows: HTTP 503 with Retry-After."""

    default_code = "insufficient_memory"


class Overloaded(_Retryable):
    """The queue is full or the request was shed: HTTP 503 with Retry-After."""

    default_code = "overloaded"


class StoreError(OtelctxError):
    """The session store could not do what was asked."""


class SessionNotFound(StoreError):
    """No such session, or it belongs to somebody else (the answer is the same on purpose): HTTP 404."""

    status = 404
    type = "invalid_request_error"
    default_code = "session_not_found"


class SessionBusy(StoreError):
    """Another turn of the same session is running: HTTP 409."""

    status = 409
    type = "invalid_request_error"
    default_code = "session_busy"


class SessionDeadline(SessionBusy):
    """A turn waited for its session, or held it without progress, until a deadline passed: HTTP 409. Nothing of it is
    kept."""


class VersionConflict(StoreError):
    """The session has moved on since the version that the caller named: HTTP 409."""

    status = 409
    type = "invalid_request_error"
    default_code = "version_conflict"


class VersionNotFound(StoreError):
    """The session has no such version, or keeps it no longer: HTTP 404."""

    status = 404
    type = "invalid_request_error"
    default_code = "version_not_found"


class StaleView(StoreError, RuntimeError):
    """A view of a window was used after its ``with`` block; its pages may belong to another session by now."""


class StoreUnavailable(StoreError):
    """The session store can't be reached: HTTP 503."""

    status = 503
    default_code = "store_unavailable"


class EngineFailed(OtelctxError):
    """The engine failed at this request, or can't go on at all: HTTP 500."""

    status = 500
    default_code = "engine_failed"


class PolicyViolation(OtelctxError):
    """A policy forbids it: HTTP 403."""

    status = 403
    type = "invalid_request_error"
    default_code = "policy_violation"
