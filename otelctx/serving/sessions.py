"""``/v1/sessions``: the sessions of one's own, their versions and labels, rollback, and their end.

An id may hold slashes. They may stand in a path as they are, unless the id's end reads like ``/versions``,
``/rollback`` or ``/labels/…``; written ``%2F`` they are always the id's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from otelctx.asgi.owner import ANONYMOUS, owner_of
from otelctx.errors import InvalidRequest
from otelctx.inference.engines.base import Engine
from otelctx.serving import body, fields
from otelctx.serving.answers import reply
from otelctx.serving.session_schemas import LABEL, MAX_PAGE, MAX_VERSION

__all__ = ["SUFFIXES", "KeyRequired", "Sessions"]

# What follows an id in a path that is not only an id.
SUFFIXES: Final = r"/(versions|rollback|labels/[^/]*)$"
_PAGE: Final = 20
_LABEL: Final = re.compile(LABEL)
_MAX_BODY: Final = 16 * 1024  # bytes


class KeyRequired(InvalidRequest):
    """Sessions are listed to whom they belong: HTTP 401."""

    status = 401
    type = "authentication_error"
    default_code = "key_required"

    def headers(self) -> list[tuple[str, str]]:
        return [("www-authenticate", "Bearer")]


class Sessions:
    """Handlers of the routes. Somebody else's session is not found, as one that doesn't exist."""

    def __init__(self, engine: Engine, limits: body.Limits) -> None:
        self._engine = engine
        self._limits = body.Limits(min(limits.size, _MAX_BODY), limits.seconds)

    async def list(self, request: Request) -> Response:
        owner = owner_of(request.scope)
        if owner == ANONYMOUS:
            # Without a key, a session is anybody's who knows its id. Nobody shall learn one here.
            raise KeyRequired("sessions are listed for the key they belong to: send Authorization: Bearer and a key")
        query = request.query_params
        fields.known(query, {"limit", "after"}, "query")
        after = query.get("after")
        if after is not None:
            after = fields.text(after, "after")
        return reply(await self._engine.sessions.page(owner, limit=_limit(query.get("limit")), after=after))

    async def get(self, request: Request) -> Response:
        return reply(await self._engine.sessions.state(*_whose(request)))

    async def delete(self, request: Request) -> Response:
        session, owner = _whose(request)
        await self._engine.sessions.delete(session, owner)
        return reply({"id": session, "object": "session.deleted", "deleted": True})

    async def versions(self, request: Request) -> Response:
        return reply(await self._engine.sessions.versions(*_whose(request)))

    async def rollback(self, request: Request) -> Response:
        given = await self._body(request)
        fields.known(given, {"version", "label"}, "body")
        version = fields.integer(given, "version", 1, MAX_VERSION)
        label = given.get("label")
        if (version is None) == (label is None):
            raise InvalidRequest(
                'say where to: either {"version": a number} or {"label": a label}',
                code="missing_required_parameter" if version is None else "invalid_request",
                param="version",
            )
        target = None if label is None else _label(fields.text(label, "label"))
        session, owner = _whose(request)
        return reply(await self._engine.sessions.rollback(session, owner, version=version, label=target))

    async def label(self, request: Request) -> Response:
        given = await self._body(request, optional=True)
        fields.known(given, {"version"}, "body")
        version = fields.integer(given, "version", 1, MAX_VERSION)
        label = _label(request.path_params["label"])
        session, owner = _whose(request)
        return reply(await self._engine.sessions.label(session, label, owner, version=version))

    async def unlabel(self, request: Request) -> Response:
        label = request.path_params["label"]
        session, owner = _whose(request)
        await self._engine.sessions.unlabel(session, label, owner)
        return reply({"object": "session.label.deleted", "session": session, "label": label, "deleted": True})

    async def _body(self, request: Request, *, optional: bool = False) -> Mapping[str, Any]:
        data = await body.read(request.scope, request.receive, self._limits)
        if optional and not data:
            return {}
        body.check_type(request.scope)
        return body.decode(data)


def _whose(request: Request) -> tuple[str, str]:
    return request.path_params["session"], owner_of(request.scope)


def _limit(given: str | None) -> int:
    if given is None:
        return _PAGE
    number = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 0
    if not 1 <= number <= MAX_PAGE:
        raise InvalidRequest(f"limit must be an integer from 1 to {MAX_PAGE}", code="invalid_value", param="limit")
    return number


def _label(label: str) -> str:
    if _LABEL.fullmatch(label) is None:
        raise InvalidRequest(
            "a label is 1 to 128 characters long, none of them a control character", code="invalid_label", param="label"
        )
    return label
