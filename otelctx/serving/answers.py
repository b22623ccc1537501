"""JSON answers, and errors in the shape of OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from otelctx.asgi.answer import error_answer
from otelctx.errors import InvalidRequest, OtelctxError

__all__ = ["NotFound", "dumps", "failed", "known_error", "no_such_route", "of_error", "reply"]

# No shared cache may keep an answer: it may carry an ack, which is one session's.
_HEADERS: Final = {"cache-control": "no-store"}
_SHOWN: Final = 200  # characters of a path
_BASE: Final = "the base URL lacks /v1"
# Parts of OpenAI's API that clients try first or by default, and what to use instead.
_HINTS: Final[Mapping[str, str]] = {
    "/v1/responses": "this server has no Responses API; use /v1/chat/completions",
    "/v1/embeddings": "this server makes no embeddings",
    "/chat/completions": _BASE,
    "/completions": _BASE,
    "/models": _BASE,
}


class NotFound(InvalidRequest):
    """No such route or model: HTTP 404."""

    status = 404
    default_code = "not_found"


def dumps(value: object) -> str:
    """JSON as it goes out. Escapes make any text safe here, even one that UTF-8 can't express."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def reply(value: Mapping[str, Any], status: int = 200) -> Response:
    return Response(dumps(value), status, _HEADERS, media_type="application/json")


def of_error(error: OtelctxError) -> Response:
    status, headers, body = error_answer(error)
    names = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return Response(body, status, _HEADERS | names)


async def known_error(request: Request, error: Exception) -> Response:
    """Exception handler for :class:`~otelctx.errors.OtelctxError`."""
    if not isinstance(error, OtelctxError) or error.status is None:
        raise error  # which ends in failed()
    return of_error(error)


async def no_such_route(request: Request, error: Exception) -> Response:
    """Exception handler for Starlette's own 404 and 405."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    path = request.url.path[:_SHOWN]
    hint = _HINTS.get(path.rstrip("/"))
    if hint is None and status == 404:
        hint = (
            "paths end without a slash" if path.endswith("/") and path != "/" else "/openapi.json lists what there is"
        )
    message = f"{request.method} {path} does not exist" if status == 404 else f"{path} does not take {request.method}"
    wrong = InvalidRequest(f"{message}: {hint}" if hint else message, code=_code(status))
    answer = reply(wrong.body(), status)
    if isinstance(error, HTTPException) and error.headers:
        answer.headers.update(error.headers)
    return answer


async def failed(request: Request, error: Exception) -> Response:
    """Exception handler for what nobody expected. The error goes on to the server, which logs it."""
    answer = reply(OtelctxError("the server failed at this request", code="internal_error").body(), 500)
    # uvicorn closes it in any case; unless that is said, the client's next request may be on its way just then.
    answer.headers["connection"] = "close"
    return answer


def _code(status: int) -> str:
    return HTTPStatus(status).phrase.lower().replace(" ", "_")
