"""The routes of ``/v1/sessions``, each with what is documented of it."""

from __future__ import annotations

from typing import Any, Final

from starlette.routing import Route

from otelctx.serving.encoded import EncodedRoute
from otelctx.serving.openapi import Operation
from otelctx.serving.session_schemas import LABEL_PARAMETER, PAGE
from otelctx.serving.sessions import SUFFIXES, Sessions

__all__ = ["route", "table"]

_ROOT: Final = "/v1/sessions"
_ONE: Final = f"{_ROOT}/{{session:path}}"
_LABEL: Final = f"{_ONE}/labels/{{label}}"
_CHANGE: Final = (400, 404, 408, 409, 413, 415, 500, 503)


def table(sessions: Sessions) -> list[tuple[Operation, Any]]:
    return [
        (
            Operation(
                "listSessions", "GET", _ROOT, "The sessions of one's own, newest first", "Sessions", parameters=PAGE,
                errors=(400, 401, 404, 500),
            ),
            sessions.list,
        ),
        (
            Operation(
                "listSessionVersions", "GET", f"{_ONE}/versions", "The versions that are kept", "SessionVersions",
                errors=(404, 500),
            ),
            sessions.versions,
        ),
        (
            Operation(
                "rollBackSession", "POST", f"{_ONE}/rollback", "Make an earlier version current, as a new one",
                "SessionRollback", body="RollbackRequest", errors=_CHANGE,
            ),
            sessions.rollback,
        ),
        (
            Operation(
                "labelSessionVersion", "PUT", _LABEL, "Name a version, which is kept then", "SessionLabel",
                body="LabelRequest", body_required=False, parameters=(LABEL_PARAMETER,),
                errors=_CHANGE,
            ),
            sessions.label,
        ),
        (
            Operation(
                "unlabelSessionVersion", "DELETE", _LABEL, "Take a label away", "SessionLabelDeleted",
                errors=(404, 409, 500, 503),
            ),
            sessions.unlabel,
        ),
        (
            Operation("retrieveSession", "GET", _ONE, "A session of one's own", "Session", errors=(404, 500)),
            sessions.get,
        ),
        (
            Operation("deleteSession", "DELETE", _ONE, "Forget a session", "SessionDeleted", errors=(404, 409, 500)),
            sessions.delete,
        ),
    ]  # fmt: skip


def route(operation: Operation, endpoint: Any) -> Route:
    """The route of any operation of the server's."""
    if not operation.path.startswith(f"{_ROOT}/"):
        return Route(operation.path, endpoint, methods=[operation.method], name=operation.name)
    # A path that ends like another one's is not an id, whatever its method.
    unless = SUFFIXES if operation.path == _ONE else None
    return EncodedRoute(operation.path, endpoint, methods=[operation.method], name=operation.name, unless=unless)
