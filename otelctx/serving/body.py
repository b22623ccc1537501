"""A request's body: of the right type, read up to a limit, then decoded as the JSON object that it must be."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from otelctx.errors import InvalidRequest
from otelctx.serving.fields import shown

__all__ = ["BodyTooLarge", "BodyTooSlow", "Limits", "UnsupportedMediaType", "check_type", "decode", "read"]

_JSON: Final = "application/json"
_CHARSETS: Final = frozenset({"utf-8", "utf8", "us-ascii"})


@dataclass(frozen=True, slots=True)
class Limits:
    """``size`` in bytes; ``seconds`` for all of it to come in."""

    size: int = 8 * 1024 * 1024
    seconds: float = 60.0


class _Unread(InvalidRequest):
    """An error before the body was read. The rest of it never is, so the connection can't be used again."""

    def headers(self) -> list[tuple[str, str]]:
        return [("connection", "close")]


class BodyTooLarge(_Unread):
    """The body is over the limit: HTTP 413. It says nothing about tokens."""

    status = 413
    default_code = "request_too_large"


class BodyTooSlow(_Unread):
    """The body was not there in time: HTTP 408."""

    status = 408
    default_code = "request_timeout"


class UnsupportedMediaType(_Unread):
    """The body is said to be something else than plain JSON: HTTP 415."""

    status = 415
    default_code = "unsupported_content_type"


def check_type(scope: Scope) -> None:
    """Raise :class:`UnsupportedMediaType` unless the body is said to be JSON, in UTF-8 and not compressed.

    A body of no stated type is taken for JSON, but not from a web page. A page may send that, and text and forms, to
    any server without asking it first; JSON it may not.
    """
    headers = {name: value for name, value in scope["headers"] if name in _READ}
    kind, _, parameters = headers.get(b"content-type", b"").decode("latin-1").partition(";")
    kind = kind.strip().lower()
    if kind != _JSON and (kind or b"origin" in headers):
        said = f"not {shown(kind)!r}" if kind else "not nothing"
        raise UnsupportedMediaType(f"the content-type of a request must be {_JSON}, {said}")
    name, _, charset = parameters.partition("=")
    if name.strip().lower() == "charset" and charset.strip(' "').lower() not in _CHARSETS:
        raise UnsupportedMediaType("the charset of a request must be utf-8")
    if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
        raise UnsupportedMediaType("send the body without content-encoding", code="unsupported_content_encoding")


_READ: Final = frozenset({b"content-type", b"content-encoding", b"origin"})


async def read(scope: Scope, receive: Receive, limits: Limits) -> bytes:
    """The whole body. Raises :class:`BodyTooLarge` as soon as it is known to be too large, by its stated length before
    a byte is read; :class:`BodyTooSlow`; ``ClientDisconnect`` if the client goes away first.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > limits.size:
            raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.seconds):
            return await _read(receive, limits)
    except TimeoutError:
        raise BodyTooSlow(f"the request's body did not come in within {limits.seconds:g} seconds") from None


async def _read(receive: Receive, limits: Limits) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limits.size:
            raise _too_large(limits)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``, or :class:`~otelctx.errors.InvalidRequest`.

    A name that stands twice in an object is refused: readers differ in which of both counts, and somebody in front of
    this server may have checked the other one.
    """
    if not body:
        raise _no_json("the body is empty: send a JSON object")
    try:
        # Some clients begin with a byte order mark; a reader may overlook it (RFC 8259, section 8.1).
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_no_constant, object_pairs_hook=_object)
    except RecursionError:
        raise _no_json("the body is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise _no_json(f"the body is not UTF-8 at byte {error.start}: send JSON in UTF-8") from None
    except ValueError as error:  # also numbers of thousands of digits
        raise _no_json(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise _no_json("the body must be a JSON object")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        left = dict(found)
        twice = next(name for name, _ in pairs if left.pop(name, pairs) is pairs)
        raise ValueError(f"the name {shown(twice)} stands twice in one object")
    return found


def _no_json(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_json")


def _too_large(limits: Limits) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is larger than {limits.size} bytes: send less at once")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
