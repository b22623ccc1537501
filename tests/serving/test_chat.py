"""Chat completions over HTTP: answers, streams, errors before and in them, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from otelctx.context.state import EMPTY
from otelctx.delta import codec
from otelctx.delta.messages import full
from otelctx.errors import InvalidRequest, Overloaded
from otelctx.exchange.node import Node
from otelctx.serving import app
from otelctx.settings import Settings
from otelctx.testing.fake_engine import FakeEngine

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi you"}]}


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def test_an_answer_in_one_piece(direct: Any) -> None:
    async with direct(FakeEngine()) as client:
        answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 200
    body = answer.json()
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "fake")
    (choice,) = body["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello there, friend.", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert body["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 4,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    window = {"used": 6, "limit": 64, "evicted": 0, "level": 0, "generation": 0, "version": 1}
    assert body["otelctx"] == {
        "session": None, "window": window, "dropped": 0, "reused": 0, "limit": None, "cut": None, "degraded": None,
        "ack": None,
    }  # fmt: skip


@pytest.mark.parametrize("usage", [False, True])
async def test_a_stream_opens_with_the_role_and_ends_with_done(direct: Any, usage: bool) -> None:
    async with direct(FakeEngine()) as client:
        options = {"stream_options": {"include_usage": True}} if usage else {}
        answer = await client.post(PATH, json=BODY | {"stream": True, "max_tokens": 2} | options)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    choices = [c["choices"][0] for c in chunks if c["choices"]]
    assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [c["delta"] for c in choices[1:]] == [{"content": "Hello"}, {"content": " there"}, {}]
    assert [c["finish_reason"] for c in choices] == [None, None, None, "length"]
    assert ["otelctx" in c for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["otelctx"]["limit"] == "output"
    assert [c for c in chunks if not c["choices"]] == (chunks[-1:] if usage else [])
    if usage:
        assert chunks[-1]["usage"]["completion_tokens"] == 2


async def test_errors_before_a_stream_are_json_with_a_status(direct: Any) -> None:
    async with direct(FakeEngine(refuse=Overloaded("full", retry_after=7))) as client:
        answer = await client.post(PATH, json=BODY | {"stream": True})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert answer.json()["error"]["code"] == "overloaded"
    engine = FakeEngine(fail=InvalidRequest("no"), fail_after=0)
    async with direct(engine) as client:
        answer = await client.post(PATH, json=BODY | {"stream": True})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "no")
    assert (engine.outcomes, engine.active) == (["error"], 0)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Overloaded('a "quoted"\nline', code="x"), "x", 'a "quoted"\nline'),
        (RuntimeError("secret"), "internal_error", "the server failed at this request"),
    ],
)
async def test_an_error_in_a_stream_is_an_event_and_there_is_no_done(
    direct: Any, caplog: pytest.LogCaptureFixture, error: Exception, code: str, message: str
) -> None:
    async with direct(FakeEngine(fail=error)) as client:
        answer = await client.post(PATH, json=BODY | {"stream": True})
    assert answer.status_code == 200
    last = events(answer.text)[-1]
    assert (last["error"]["code"], last["error"]["message"]) == (code, message)
    assert "[DONE]" not in answer.text
    assert ("a stream failed" in caplog.text) is isinstance(error, RuntimeError)


async def test_an_unexpected_failure_is_a_500_that_tells_nothing(direct: Any) -> None:
    async with direct(FakeEngine(fail=RuntimeError("secret"))) as client:
        answer = await client.post(PATH, json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert answer.headers["connection"] == "close"
    assert "secret" not in answer.text


async def test_too_long_a_prompt_says_the_numbers(direct: Any) -> None:
    async with direct(FakeEngine(window=4)) as client:
        answer = await client.post(PATH, json=BODY | {"messages": [{"role": "user", "content": "a b c d e"}]})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["n_prompt_tokens"], error["max_context"]) == (
        400, "context_length_exceeded", 5, 4
    )  # fmt: skip


async def test_an_unknown_model_is_not_found(direct: Any) -> None:
    async with direct(FakeEngine()) as client:
        answer = await client.post(PATH, json=BODY | {"model": "gpt-\udfff".encode("utf-8", "replace").decode()})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert answer.json()["error"]["param"] == "model"


async def test_a_lone_surrogate_in_a_name_is_answered_and_not_stumbled_over(direct: Any) -> None:
    async with direct(FakeEngine()) as client:
        answer = await client.post(PATH, content=b'{"model": "fake", "\\ud800": 1}')
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_parameter")
        answer = await client.post(PATH, content=b'{"model": "m\\ud800"}')
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_unicode")


async def test_a_body_over_the_limit_is_refused_by_its_length_without_being_read(asgi: Any) -> None:
    request = asgi(app(FakeEngine(), node=Node(Settings()), max_body=100), b"x" * 101)
    await request.run()
    assert request.sent[0]["status"] == 413
    assert (b"connection", b"close") in request.sent[0]["headers"]
    assert request.read == 0


async def test_a_body_that_grows_over_the_limit_is_not_read_on(direct: Any) -> None:
    async def endless() -> Any:
        nonlocal produced
        while produced < 50:
            produced += 1
            yield b"x" * 50

    produced = 0
    async with direct(FakeEngine(), max_body=100) as client:
        answer = await client.post(PATH, content=endless())
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert produced < 10


@pytest.mark.parametrize("stream", [False, True])
async def test_when_the_client_goes_the_turn_is_taken_back(asgi: Any, stream: bool) -> None:
    """Also in the middle of an answer that nobody sees before it is whole."""
    engine = FakeEngine(gate=asyncio.Event())
    await engine.start()
    request = asgi(app(engine, node=Node(Settings())), json.dumps(BODY | {"stream": stream}).encode())
    task = asyncio.create_task(request.run())
    await asyncio.wait_for(engine.begun.wait(), 60)
    request.vanish()
    await asyncio.wait_for(task, 60)
    assert (engine.outcomes, engine.active) == (["cancelled"], 0)
    assert bool(request.sent) is stream
    assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]


async def test_a_cancellation_from_outside_stays_one_and_takes_the_turn_back(asgi: Any) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    await engine.start()
    task = asyncio.create_task(asgi(app(engine, node=Node(Settings())), json.dumps(BODY).encode()).run())
    await asyncio.wait_for(engine.begun.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (engine.outcomes, engine.active) == (["cancelled"], 0)


async def test_the_last_event_carries_what_the_callers_context_learns(direct: Any) -> None:
    """The head of a stream went out before the tokens were counted."""
    state = EMPTY.put("session.id", "s")
    frame = codec.to_header(codec.encode_frame(full(state)))
    node = Node(Settings(trusted_clients=("127.0.0.1",)))
    engine = FakeEngine()
    await engine.start()
    transport = httpx.ASGITransport(app(engine, node=node), client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post(PATH, json=BODY | {"stream": True}, headers={"otelctx": frame})
    head = codec.decode_ack(codec.from_header(answer.headers["otelctx-ack"]))
    assert head.ups == ()
    assert not head.final
    ack = codec.decode_ack(codec.from_header(events(answer.text)[-2]["otelctx"]["ack"]))
    assert {e.name: e.value for e in ack.ups} == {"usage.tokens.input": 2, "usage.tokens.output": 4}
    assert ack.final
    assert ack.root == state.root[:8]
