from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from otelctx.serving.encoded import EncodedRoute


async def endpoint(request: Request) -> Response:
    return Response()


def match(path: str, raw: bytes | None, method: str = "GET") -> tuple[Match, dict[str, Any]]:
    route = EncodedRoute("/s/{id:path}", endpoint, methods=["GET"], name="one", unless="/end$")
    scope = {"type": "http", "method": method, "path": path, "root_path": ""}
    found, child = route.matches(scope | ({} if raw is None else {"raw_path": raw}))
    return found, dict(child.get("path_params", {}))


@pytest.mark.parametrize(
    ("path", "raw", "found"),
    [
        ("/s/a/b", b"/s/a/b", (Match.FULL, {"id": "a/b"})),
        ("/s/a/end", b"/s/a%2Fend", (Match.FULL, {"id": "a/end"})),
        ("/s/a/end", b"/s/a/end", (Match.NONE, {})),
        ("/s/a%2Fend", b"/s/a%252Fend", (Match.FULL, {"id": "a%2Fend"})),
        ("/s/\u00fc", b"/s/%C3%BC", (Match.FULL, {"id": "\u00fc"})),
        ("/s/a/end", None, (Match.NONE, {})),
        ("/s/a%2Fend", None, (Match.FULL, {"id": "a%2Fend"})),
        ("/t/a", b"/t/a", (Match.NONE, {})),
    ],
)
def test_a_path_is_matched_as_it_was_sent_and_decoded_once(path: str, raw: bytes | None, found: Any) -> None:
    assert match(path, raw) == found


def test_another_method_is_a_partial_match() -> None:
    assert match("/s/a", b"/s/a", "PUT") == (Match.PARTIAL, {"id": "a"})
