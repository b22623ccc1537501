"""Which responses refuse headers for their size: the page of nginx is told by its head, and by nothing less."""

from __future__ import annotations

from typing import Any

import pytest

from otelctx.clients.refusals import too_large

# As nginx 1.22.1 sends it; the length is that of its page with `nginx/1.22.1` in it.
PAGE = {"server": "nginx/1.22.1", "content-type": "text/html", "content-length": "233", "connection": "close"}


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (431, {}),
        (494, {}),
        (400, PAGE),
        (400, {**PAGE, "server": "nginx", "content-length": "226"}),
        (400, {**PAGE, "server": "openresty/1.25.3.2", "content-length": "239"}),
    ],
)
def test_what_refuses_headers_for_their_size(status: int, headers: Any) -> None:
    assert too_large(status, headers)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (400, {}),
        (400, {**PAGE, "content-length": "157"}),  # nginx's page of any other 400
        (400, {**PAGE, "content-type": "text/html; charset=utf-8"}),
        (400, {**PAGE, "connection": "keep-alive"}),
        (400, {**PAGE, "server": "uvicorn", "content-length": "228"}),
        (400, {name: value for name, value in PAGE.items() if name != "content-length"}),
        (500, PAGE),
        (200, PAGE),
    ],
)
def test_what_does_not(status: int, headers: Any) -> None:
    assert not too_large(status, headers)
