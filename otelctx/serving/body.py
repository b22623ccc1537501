"""A request's body: read up to a limit, then decoded as the JSON object that it must be."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from otelctx.errors import InvalidRequest

__all__ = ["MAX_BODY", "BodyTooLarge", "decode", "read"]

MAX_BODY: Final = 8 * 1024 * 1024  # bytes


class BodyTooLarge(InvalidRequest):
    """The body is over the limit: HTTP 413. It says nothing about tokens."""

    status = 413
    default_code = "request_too_large"

    def headers(self) -> list[tuple[str, str]]:
        # The rest of the body is not read, so the connection can't be used for another request.
        return [("connection", "close")]


async def read(scope: Scope, receive: Receive, limit: int = MAX_BODY) -> bytes:
    """The whole body. Raises :class:`BodyTooLarge` as soon as it is known to be over ``limit`` bytes, by its stated
    length before a byte is read; ``ClientDisconnect`` if the client goes away first.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > limit:
            raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``, or :class:`~otelctx.errors.InvalidRequest`."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply", code="invalid_json") from None
    except ValueError as error:  # also what is no UTF-8, and numbers of thousands of digits
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return value


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is larger than {limit} bytes")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
