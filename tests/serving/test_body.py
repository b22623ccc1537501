"""What is refused before anything looks at the JSON: type, size, time, encoding."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otelctx.errors import InvalidRequest
from otelctx.exchange.node import Node
from otelctx.serving import app
from otelctx.serving.body import decode
from otelctx.settings import Settings
from otelctx.testing.fake_engine import FakeEngine

PATHS = ["/v1/chat/completions", "/v1/completions"]
GOOD = {
    PATHS[0]: json.dumps({"model": "fake", "messages": [{"role": "user", "content": "hi"}]}).encode(),
    PATHS[1]: json.dumps({"model": "fake", "prompt": "hi"}).encode(),
}


async def post(direct: Any, path: str, headers: dict[str, str], content: bytes | None = None, **options: Any) -> Any:
    async with direct(FakeEngine(), **options) as client:
        return await client.post(path, content=GOOD[path] if content is None else content, headers=headers)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "application/json"},
        {"content-type": "Application/JSON; charset=UTF-8"},
        {"content-type": 'application/json;charset="utf-8"', "origin": "https://page.example"},
        {"content-encoding": "identity"},
    ],
)
async def test_json_is_taken_and_so_is_what_states_no_type(direct: Any, path: str, headers: dict[str, str]) -> None:
    assert (await post(direct, path, headers)).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("headers", "code", "word"),
    [
        ({"content-type": "text/plain"}, "unsupported_content_type", "application/json"),
        ({"content-type": "application/x-www-form-urlencoded"}, "unsupported_content_type", "application/json"),
        ({"content-type": "multipart/form-data; boundary=x"}, "unsupported_content_type", "application/json"),
        ({"content-type": "application/json; charset=latin-1"}, "unsupported_content_type", "utf-8"),
        ({"origin": "https://page.example"}, "unsupported_content_type", "application/json"),
        ({"content-encoding": "gzip"}, "unsupported_content_encoding", "content-encoding"),
    ],
)
async def test_what_a_web_page_may_send_to_anybody_and_what_is_packed_is_refused(
    direct: Any, path: str, headers: dict[str, str], code: str, word: str
) -> None:
    answer = await post(direct, path, headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (415, code, "invalid_request_error")
    assert word in error["message"]


async def test_a_body_that_stays_away_is_waited_for_no_longer_than_that(asgi: Any) -> None:
    request = asgi(app(FakeEngine(), node=Node(Settings()), body_timeout=0.01), b'{"model": ', more=True)
    await request.run()
    head, body = request.sent
    assert head["status"] == 408
    assert (b"connection", b"close") in head["headers"]
    assert json.loads(body["body"])["error"]["code"] == "request_timeout"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "empty"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8 at byte 0"),
        (b'{"a": 1, "a": 1}', "a stands twice"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "b stands twice"),
        (b'{"\\ud800": 1, "\\ud800": 2}', "\\ud800 stands twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b"[" * 100_000, "deeply"),
        (b'{"a":' * 100_000, "deeply"),
        (b'"{}"', "object"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, word: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        decode(body)
    assert (raised.value.code, word in raised.value.message) == ("invalid_json", True)


def test_a_byte_order_mark_is_overlooked() -> None:
    assert decode(b'\xef\xbb\xbf{"a": "\xef\xbb\xbf"}') == {"a": "\ufeff"}


def test_a_name_may_stand_in_several_objects() -> None:
    assert decode(b'{"a": [{"b": 1}, {"b": 2}], "b": 3}') == {"a": [{"b": 1}, {"b": 2}], "b": 3}


def test_many_names_are_looked_through_once() -> None:
    """A megabyte of names with the double one at the end must not take the square of it."""
    names = ",".join(f'"{n}":0' for n in range(100_000))
    with pytest.raises(InvalidRequest, match="99999 stands twice"):
        decode(f'{{{names},"99999":0}}'.encode())
