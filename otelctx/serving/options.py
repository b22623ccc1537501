"""The ``otelctx`` object of a request's body: what OpenAI's API has no words for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from otelctx.errors import InvalidRequest
from otelctx.inference.overflow import Mode
from otelctx.serving import fields
from otelctx.serving.parameters import Number

__all__ = ["Options", "options", "schema"]

_MODES: Final = get_args(Mode)
_MAX_SESSION: Final = 256  # characters
_APPEND: Final = "append"
_TIMEOUT: Final = Number(
    "timeout", 0, 86400, "Seconds after which the answer ends where it is (`limit` is `deadline`).", above=True
)
_SESSION_FIELDS: Final[Mapping[str, dict[str, Any]]] = {
    "session": {
        "type": ["string", "null"],
        "minLength": 1,
        "maxLength": _MAX_SESSION,
        "description": "The messages are added to this session of the caller's own, which is made if there is none.",
    },
    "mode": {"enum": [_APPEND, None], "description": "Needed with `session`: what the messages are to it."},
}
_FIELDS: Final[Mapping[str, dict[str, Any]]] = {
    "when_full": {
        "enum": [*_MODES, None],
        "description": "If the turn does not fit into the window: refuse it, drop the oldest exchanges whole, or also "
        "go on past the window. Default: the server's setting with a session, `reject` without one.",
    },
    _TIMEOUT.name: _TIMEOUT.schema(),
}


@dataclass(frozen=True, slots=True)
class Options:
    """``timeout`` in seconds; ``None`` is what the engine does by itself."""

    session: str | None = None
    when_full: Mode | None = None
    timeout: float | None = None


def schema(*, sessions: bool) -> dict[str, Any]:
    """JSON Schema of the object, where a ``session`` may stand in it and where not."""
    nothing = {name: {"type": "null"} for name in _SESSION_FIELDS}
    own = {**(_SESSION_FIELDS if sessions else nothing), **_FIELDS}
    found: dict[str, Any] = {"type": ["object", "null"], "properties": own, "additionalProperties": False}
    if sessions:
        both = {"session": {"type": "string"}, "mode": {"const": _APPEND}}
        found["anyOf"] = [{"properties": nothing}, {"properties": both, "required": list(both)}]
    return found


def options(body: Mapping[str, Any], context_session: str | None, *, sessions: bool) -> Options:
    """Read the object. ``context_session`` is the session id of the request's context: the body must not contradict it.

    Raises :class:`~otelctx.errors.InvalidRequest`.
    """
    given = fields.mapping(body, "otelctx")
    if given is None:
        return Options()
    if not sessions and any(given.get(name) is not None for name in _SESSION_FIELDS):
        raise InvalidRequest(
            "a session continues a conversation: use /v1/chat/completions, or leave otelctx.session out",
            code="session_unsupported",
            param="otelctx.session",
        )
    fields.known(given, {*_SESSION_FIELDS, *_FIELDS}, "otelctx")
    return Options(_session(given, context_session), _when_full(given), _TIMEOUT.read(given, "otelctx."))


def _session(given: Mapping[str, Any], context_session: str | None) -> str | None:
    if given.get("session") is None and given.get("mode") is None:
        return None
    session = fields.text(given.get("session"), "otelctx.session")
    if not 0 < len(session) <= _MAX_SESSION:
        raise InvalidRequest(
            f"otelctx.session must be 1 to {_MAX_SESSION} characters long",
            code="invalid_session",
            param="otelctx.session",
        )
    if given.get("mode") != _APPEND:
        raise InvalidRequest(
            f'otelctx.mode must be "{_APPEND}": the messages are added to the session',
            code="invalid_mode",
            param="otelctx.mode",
        )
    if context_session is not None and context_session != session:
        raise InvalidRequest(
            "otelctx.session is not the session.id that the request's context carries",
            code="session_mismatch",
            param="otelctx.session",
        )
    return session


def _when_full(given: Mapping[str, Any]) -> Mode | None:
    value = given.get("when_full")
    if value is None:
        return None
    if value not in _MODES:
        raise InvalidRequest(
            f"otelctx.when_full must be one of {', '.join(_MODES)}", code="invalid_value", param="otelctx.when_full"
        )
    return cast(Mode, value)
