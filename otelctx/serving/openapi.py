"""``/openapi.json``: every route, from the table of routes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from otelctx.serving.schemas import ref, schemas

__all__ = ["Operation", "document", "template"]

Json = dict[str, Any]

_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_ABOUT: Final = (
    "An OpenAI-compatible server. Context comes in by the `otelctx` header and goes back by `otelctx-ack`; a frame "
    "that builds on something this server does not hold is answered by 412. Unknown parameters, and known ones that "
    "this server can't honour, are refused. Each error says what to do."
)
_EVENTS: Final = (
    "Server-sent events. Each is `data: ` and a JSON object, ended by an empty line. The last object has `otelctx`, "
    "and `data: [DONE]` follows it. If the answer fails on the way, the last event is an error object as in other "
    "answers, and there is no `[DONE]`."
)
_ERRORS: Final[Mapping[int, str]] = {
    400: "The request can't be understood or honoured, or is too long for the window (`context_length_exceeded`).",
    401: "Whose sessions they are has to be known: send a key.",
    404: "No such model, session, version or label; a session of somebody else's is none.",
    408: "The request's body was too slow.",
    409: "Another turn of the session is running, or it has moved on.",
    413: "The request's body is too large; no matter of tokens.",
    415: "The request's body is not said to be uncompressed JSON in UTF-8.",
    422: "Under pressure a request of this length is refused, or must be streamed (`stream_required`).",
    500: "The server failed.",
    503: "Too much to do, or not enough memory: try again after `retry-after` seconds.",
}
_HEADERS: Final[Mapping[str, Json]] = {
    "x-request-id": {
        "description": "The id of the request's trace.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    },
    "retry-after": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}},
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. ``path`` is Starlette's template; ``answer``, ``chunk`` (of a stream) and ``body`` are
    names of schemas; ``errors`` are HTTP statuses, and ``unready`` is the schema of a 503 that is no error.
    ``parameters`` are those of the query, and those of the path of which more is to be said than their names.
    """

    name: str
    method: str
    path: str
    summary: str
    answer: str
    chunk: str | None = None
    body: str | None = None
    errors: tuple[int, ...] = (500,)
    unready: str | None = None
    body_required: bool = True
    parameters: Sequence[Json] = ()


def template(path: str) -> str:
    """Starlette's template of a path as OpenAPI has it: parameters without their convertors."""
    return _PARAMETER.sub(r"{\1}", path)


def document(operations: Sequence[Operation], *, model: str, version: str) -> Json:
    """The OpenAPI document of a server that has ``model``."""
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(template(operation.path), {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "otelctx", "version": version, "description": _ABOUT, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": schemas(model),
            "headers": dict(_HEADERS),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "Sessions belong to the key's holder."}
            },
        },
        # Without a key, sessions are everybody's.
        "security": [{}, {"key": []}],
    }


def _operation(operation: Operation) -> Json:
    content = {"application/json": {"schema": ref(operation.answer)}}
    if operation.chunk is not None:
        content["text/event-stream"] = {"schema": _event(operation.chunk)}
    found: Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {
            "200": _response("Success.", content),
            **{str(status): _error(status) for status in operation.errors},
        },
    }
    if operation.unready is not None:
        found["responses"]["503"] = _response(
            "Not healthy, or not ready.", {"application/json": {"schema": ref(operation.unready)}}
        )
    given = {parameter["name"] for parameter in operation.parameters}
    named = [_path_parameter(name) for name in _PARAMETER.findall(operation.path) if name not in given]
    if parameters := [*named, *operation.parameters]:
        found["parameters"] = parameters
    if operation.body is not None:
        accepted = {"application/json": {"schema": ref(operation.body)}}
        found["requestBody"] = {"required": operation.body_required, "content": accepted}
    return found


def _event(chunk: str) -> Json:
    """One event of a stream; before OpenAPI 3.2 that is what the schema of such a body describes."""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [ref(chunk), ref("Error")]},
    }
    return {
        "type": "object",
        "description": _EVENTS,
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, data]}},
        "required": ["data"],
    }


def _path_parameter(name: str) -> Json:
    about = "Percent-encoded; slashes may stay as they are."
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "description": about, "schema": schema}


def _error(status: int) -> Json:
    content = {"application/json": {"schema": ref("Error")}}
    headers = ("retry-after",) if status == HTTPStatus.SERVICE_UNAVAILABLE else ()
    return _response(_ERRORS[status], content, *headers)


def _response(about: str, content: Json, *headers: str) -> Json:
    named = {name: {"$ref": f"#/components/headers/{name}"} for name in ("x-request-id", *headers)}
    return {"description": about, "headers": named, "content": content}
