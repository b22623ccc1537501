"""What an application answers against ASGI is for the server to refuse: here it costs an attribute, and no request."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from otelctx.asgi.stream import status_code

STATUS = "http.response.status_code"


class Unreadable:
    def __int__(self) -> int:
        raise RuntimeError


STATUSES: list[tuple[Any, int]] = [
    *((200, 200), ("200", 200), (HTTPStatus.NOT_FOUND, 404), (100, 100), (999, 999), ("503", 503)),
    *((99, 0), (1000, 0), (-1, 0), (2**64, 0), (True, 0), (None, 0), ("", 0), ("ok", 0), (b"\xff", 0)),
    *((float("inf"), 0), ([], 0), (Unreadable(), 0), ("9" * 5000, 0)),
]


@pytest.mark.parametrize(("given", "expected"), STATUSES, ids=[repr(given)[:20] for given, _ in STATUSES])
async def test_a_status_is_one_or_is_not_told(rig: Any, given: Any, expected: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": given, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    assert type(status_code(given)) is int
    assert status_code(given) == expected
    r = rig(app)
    assert (await r.request()).body == b"ok"
    error = str(expected) if expected >= 500 else None
    for attributes in (r.span.attributes, r.point()):
        assert (attributes.get(STATUS, 0), attributes.get("error.type")) == (expected, error)


@pytest.mark.parametrize(("given", "expected"), STATUSES, ids=[repr(given)[:20] for given, _ in STATUSES])
async def test_so_is_the_status_of_a_denial(rig: Any, given: Any, expected: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.http.response.start", "status": given, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b""})

    r = rig(app)
    assert (await r.websocket("/ws", [])).status is given
    assert r.span.attributes.get(STATUS, 0) == expected
    assert r.span.attributes.get("error.type") == (str(expected) if expected >= 500 else None)


async def test_an_answer_that_has_begun_with_no_status_is_not_begun_anew(rig: Any) -> None:
    from otelctx.errors import OtelctxError

    class Busy(OtelctxError):
        status = 503

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "headers": []})
        raise Busy("too late")

    r = rig(app)
    with pytest.raises(Busy):
        await r.request()
    assert STATUS not in r.span.attributes
    assert r.point()["error.type"].endswith("Busy")


@pytest.mark.parametrize(
    ("given", "expected"), [(1000, 1000), (65535, 65535), ("1000", None), (None, None), (-1, None), (2**64, None)]
)
@pytest.mark.parametrize("by", ["application", "client"])
async def test_a_close_code_is_one_or_is_not_told(rig: Any, by: str, given: Any, expected: int | None) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        if by == "client":
            await receive()
        else:
            await send({"type": "websocket.close", "code": given})

    r = rig(app)
    out = await r.websocket("/ws", [{"type": "websocket.disconnect", "code": given}])
    assert [m["code"] for m in out.messages if "code" in m] == ([given] if by == "application" else [])
    assert r.spans[-1].attributes.get("otelctx.websocket.close_code") == expected
