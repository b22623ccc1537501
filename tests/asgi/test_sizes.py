"""Sizes of bodies: bytes that were there, each request's own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from otelctx import semconv

REQUEST, RESPONSE = semconv.HTTP_SERVER_REQUEST_SIZE, semconv.HTTP_SERVER_RESPONSE_SIZE


def sums(r: Any) -> tuple[list[float], list[float]]:
    return [p.sum for p in r.points(REQUEST)], [p.sum for p in r.points(RESPONSE)]


def sizes(span: Any) -> tuple[int, int]:
    return span.attributes["http.request.body.size"], span.attributes["http.response.body.size"]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with twice what it has got, and says less."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
    for piece in (body, body):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body"})


async def test_bodies_are_counted_as_they_are_and_not_as_content_length_says(rig: Any) -> None:
    r = rig(echo, body_sizes=True)
    await r.request("POST", "/", {"content-length": "99999999"}, body=b"x" * 1500)
    assert sums(r) == ([1500], [3000])
    assert sizes(r.span) == (1500, 3000)
    (point,) = r.points(RESPONSE)
    assert dict(point.attributes) == r.point()


async def test_the_bounds_are_those_for_bytes(rig: Any) -> None:
    r = rig(echo, body_sizes=True)
    await r.request("POST", "/", body=b"x")
    (point,) = r.points(REQUEST)
    assert point.explicit_bounds == semconv.METRICS[REQUEST].bounds
    assert point.explicit_bounds[:3] == (0, 1024, 2048)
    assert point.explicit_bounds[-1] == 2**32


@pytest.mark.parametrize("options", [{}, {"body_sizes": False}])
async def test_nothing_is_counted_unless_asked_for(rig: Any, options: dict[str, bool]) -> None:
    r = rig(echo, **options)
    await r.request("POST", "/", body=b"x")
    assert sums(r) == ([], [])
    assert not any("body.size" in key for key in r.span.attributes)


async def test_without_metrics_the_sizes_are_on_the_span(rig: Any) -> None:
    r = rig(echo, body_sizes=True, metrics=False)
    await r.request("POST", "/", body=b"xy")
    assert sums(r) == ([], [])
    assert sizes(r.span) == (2, 4)


async def test_requests_at_the_same_time_have_sizes_of_their_own(rig: Any) -> None:
    """https://github.com/open-telemetry/opentelemetry-python-contrib/pull/5081"""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0)
        await echo(scope, receive, send)

    r = rig(app, body_sizes=True)
    await asyncio.gather(*(r.request("POST", f"/{n}", body=b"x" * n) for n in range(1, 20)))
    await r.request("GET", "/stream")
    found = {s.attributes["url.path"]: sizes(s) for s in r.spans}
    assert found == {f"/{n}": (n, 2 * n) for n in range(1, 20)} | {"/stream": (0, 0)}


async def test_a_head_request_has_no_response_body_whatever_the_application_sends(rig: Any, ok: Any) -> None:
    r = rig(lambda scope, receive, send: ok(send, 200, b"x" * 100), body_sizes=True)
    await r.request("HEAD", "/")
    assert sizes(r.span) == (0, 0)


async def test_a_body_that_was_cut_off_counts_what_was_sent_of_it(rig: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(5):
            await send({"type": "http.response.body", "body": b"x" * 10, "more_body": True})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        if len(sent) == 4:
            raise OSError("gone")
        sent.append(message)

    r = rig(app, body_sizes=True)
    with pytest.raises(OSError, match="gone"):
        await r.request("GET", "/", send=send)
    assert sizes(r.span) == (0, 30)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ({"type": "http.response.pathsend"}, 1000),
        ({"type": "http.response.pathsend", "path": "/nowhere/at/all"}, 0),
        ({"type": "http.response.zerocopysend", "count": 10}, 10),
        ({"type": "http.response.zerocopysend", "offset": 300}, 700),
        ({"type": "http.response.zerocopysend"}, 1000),
    ],
    ids=["path", "no path", "count", "offset", "whole"],
)
@pytest.mark.parametrize("descriptor", [False, True])
async def test_files_that_the_server_sends_are_counted(
    rig: Any, tmp_path: Path, message: dict[str, Any], size: int, descriptor: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    with path.open("rb") as opened:

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"path": str(path), "file": opened.fileno() if descriptor else opened, **message})

        r = rig(app, body_sizes=True)
        await r.request("GET", "/")
    assert sizes(r.span) == (0, size)
