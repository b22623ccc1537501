"""What a request's metric points say, and when they are recorded."""

from __future__ import annotations

from typing import Any

import pytest

DURATION = "http.server.request.duration"


async def test_the_duration_is_the_spans_and_has_it_as_exemplar(rig: Any, ok: Any) -> None:
    """From a histogram's bucket one gets to a trace that was so slow."""
    r = rig(lambda scope, receive, send: ok(send))
    await r.request()
    (point,) = r.points(DURATION)
    span = r.span
    assert point.sum == pytest.approx((span.end_time - span.start_time) / 1e9, abs=0.05)
    assert [(e.span_id, e.trace_id) for e in point.exemplars] == [(span.context.span_id, span.context.trace_id)]


async def test_the_duration_is_recorded_at_the_last_byte_and_not_after_the_work_behind_it(rig: Any, ok: Any) -> None:
    counts: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)
        counts.append(sum(point.count for point in r.points(DURATION)))

    r = rig(app)
    await r.request()
    assert counts == [1]
    assert r.points(DURATION)[0].count == 1


async def test_a_response_of_unknown_length_after_one_of_known_length_has_nothing_of_it(rig: Any, ok: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        sized = scope["path"] == "/sized"
        headers = [(b"content-length", b"1000")] if sized else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * (1000 if sized else 1), "more_body": not sized})
        if not sized:
            await send({"type": "http.response.body", "body": b""})

    r = rig(app, body_sizes=True)
    for path in ("/sized", "/streamed", "/sized"):
        await r.request("GET", path)
    (point,) = r.points("http.server.response.body.size")
    assert (point.count, point.sum) == (3, 2001)
