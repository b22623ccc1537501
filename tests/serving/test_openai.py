"""The official client, unchanged, against a real server: sync, async and streamed."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from otelctx.errors import (
    BreakerOpen,
    BudgetExhausted,
    OtelctxError,
    Overloaded,
    PolicyViolation,
    SessionBusy,
    SessionNotFound,
    StreamRequired,
)
from otelctx.testing.fake_engine import FakeEngine

MESSAGES: Any = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(reply=["Hel", "lo", " \U0001f600"])


@pytest.fixture(scope="module")
def url(served: Any, engine: FakeEngine) -> Iterator[str]:
    with served(engine) as base:
        yield base


def test_sync(url: str, engine: FakeEngine) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="fake",
            messages=MESSAGES,
            max_completion_tokens=2,
            temperature=0,
            seed=1,
            extra_body={"otelctx": {"session": "s", "mode": "append"}},
        )
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello", "length")
        assert answer.usage is not None
        assert answer.usage.total_tokens == 5
        assert answer.model_extra is not None
        assert answer.model_extra["otelctx"]["session"] == "s"
        assert engine.turns[-1].owner.startswith("key:")
        assert [m.role for m in engine.turns[-1].messages] == ["system", "user"]
        assert [m.id for m in client.models.list()] == ["fake"]
        assert client.models.retrieve("fake").id == "fake"


async def test_async_stream(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello \U0001f600"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    assert chunks[-1].model_extra is not None
    assert chunks[-1].model_extra["otelctx"]["window"]["limit"] == 64


def test_errors_are_of_the_clients_own_classes(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "w " * 100}])
        assert bad.value.code == "context_length_exceeded"
        assert "maximum context length" in bad.value.message
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="gpt", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError) as api:
            client.responses.create(model="fake", input="hi")
        assert "Responses API" in api.value.message


@pytest.mark.parametrize(
    ("error", "raised", "status", "code"),
    [
        (PolicyViolation("no"), openai.PermissionDeniedError, 403, "policy_violation"),
        (SessionNotFound("no"), openai.NotFoundError, 404, "session_not_found"),
        (SessionBusy("wait"), openai.ConflictError, 409, "session_busy"),
        (StreamRequired("stream it"), openai.UnprocessableEntityError, 422, "stream_required"),
        (BreakerOpen("shorter"), openai.UnprocessableEntityError, 422, "breaker_open"),
        (BudgetExhausted("later"), openai.InternalServerError, 503, "insufficient_memory"),
        (Overloaded("later"), openai.InternalServerError, 503, "overloaded"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_error_is_one_that_the_client_knows(
    direct: Any, error: OtelctxError, raised: type[openai.APIStatusError], status: int, code: str, stream: bool
) -> None:
    async with (
        direct(FakeEngine(refuse=error)) as http,
        openai.AsyncOpenAI(base_url="http://test/v1", api_key="k", max_retries=0, http_client=http) as client,
    ):
        for create in (
            client.chat.completions.create(model="fake", messages=MESSAGES, stream=stream),
            client.completions.create(model="fake", prompt="hi", stream=stream),
        ):
            with pytest.raises(raised) as caught:
                await create
            assert (caught.value.status_code, caught.value.code) == (status, code)
            assert caught.value.message.endswith(error.message)


def test_the_client_comes_back_when_it_is_told_to(served: Any) -> None:
    waits: list[float] = []
    engine = FakeEngine(refuse=Overloaded("full", retry_after=7))

    class Patient(openai.OpenAI):
        """Waits in no time."""

        def _calculate_retry_timeout(self, *args: Any, **kwargs: Any) -> float:
            waits.append(super()._calculate_retry_timeout(*args, **kwargs))
            engine.refuse = None
            return 0.0

    with served(engine) as base, Patient(base_url=f"{base}/v1", api_key="k", max_retries=1) as client:
        answer = client.chat.completions.create(model="fake", messages=MESSAGES)
    assert answer.choices[0].finish_reason == "stop"
    assert waits == [7.0]


def test_an_error_in_a_stream_is_raised_by_the_client(served: Any) -> None:
    with (
        served(FakeEngine(fail=BudgetExhausted("out of memory"))) as base,
        openai.OpenAI(base_url=f"{base}/v1", api_key="k", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="out of memory"):
            list(stream)


def test_ten_megabytes_are_answered_by_413_and_the_server_lives(url: str) -> None:
    body = b'{"model": "fake", "messages": [{"role": "user", "content": "' + b"x" * 10_000_000 + b'"}]}'
    with httpx.Client(base_url=url, timeout=60) as client:
        answer = client.post("/v1/chat/completions", content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        assert client.get("/healthz").status_code == 200


def test_a_reset_in_a_stream_takes_the_turn_back(served: Any) -> None:
    """The client's process died: no task was cancelled, the connection is just gone."""
    endless = FakeEngine(reply=["word "] * 2_000_000, window=10_000_000)
    with served(endless) as base:
        host, port = base.removeprefix("http://").split(":")
        body = b'{"model": "fake", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
        connection = socket.create_connection((host, int(port)))
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        deadline = time.monotonic() + 60
        while endless.active and time.monotonic() < deadline:
            time.sleep(0.01)
        assert endless.outcomes == ["cancelled"]
