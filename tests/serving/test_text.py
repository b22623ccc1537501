"""Text completions: what a request may say, and what its answer looks like."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from otelctx.errors import BudgetExhausted, InvalidRequest
from otelctx.exchange.node import Node
from otelctx.inference.sampling import Params
from otelctx.serving import app, parse
from otelctx.settings import Settings
from otelctx.testing.fake_engine import FakeEngine

PATH = "/v1/completions"
BODY: dict[str, Any] = {"model": "fake", "prompt": "hi you"}


def text(**fields: Any) -> parse.CompletionRequest:
    return parse.text({"model": "m", "prompt": "hello"} | fields, parse.Caller("ann"))


def test_defaults_are_those_of_the_api() -> None:
    request = text()
    (turn,) = request.turns
    assert (turn.prompt, turn.messages, turn.max_tokens, turn.params) == ("hello", (), 16, Params())
    assert (turn.owner, turn.session, turn.stop, turn.stream) == ("ann", None, (), False)
    assert (request.stream, request.include_usage, request.model) == (False, False, "m")


def test_everything_that_is_supported_reaches_each_turn() -> None:
    request = text(
        prompt=["a", "b"], max_tokens=3, temperature=0, seed=7, stop="x", stream=True, n=1, best_of=1, echo=False,
        suffix="", logprobs=None, stream_options={"include_usage": True}, user="u", logit_bias={},
        otelctx={"when_full": "reject", "timeout": 3},
    )  # fmt: skip
    assert request.include_usage
    assert [turn.prompt for turn in request.turns] == ["a", "b"]
    for turn in request.turns:
        assert (turn.max_tokens, turn.params.temperature, turn.params.seed, turn.stop) == (3, 0.0, 7, ("x",))
        assert (turn.stream, turn.when_full, turn.deadline) == (True, "reject", 3.0)


@pytest.mark.parametrize(
    ("prompt", "turns"),
    [
        ("a", ("a",)),
        (["a"], ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([1.0, 2], ((1, 2),)),
        ([[1, 2]], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_a_prompt_is_text_or_token_ids_or_several_of_them(prompt: Any, turns: Any) -> None:
    assert tuple(turn.prompt for turn in text(prompt=prompt).turns) == turns


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": 5}, "prompt", "invalid_type"),
        ({"prompt": ""}, "prompt", "empty_string"),
        ({"prompt": []}, "prompt", "empty_array"),
        ({"prompt": ["a", ""]}, "prompt[1]", "empty_string"),
        ({"prompt": ["a", 1]}, "prompt[1]", "invalid_type"),
        ({"prompt": [1, "a"]}, "prompt[1]", "invalid_type"),
        ({"prompt": [1, True]}, "prompt[1]", "invalid_type"),
        ({"prompt": [1.5]}, "prompt[0]", "invalid_type"),
        ({"prompt": [[]]}, "prompt[0]", "empty_array"),
        ({"prompt": [[1], "a"]}, "prompt[1]", "invalid_type"),
        ({"prompt": [{}]}, "prompt[0]", "invalid_type"),
        ({"prompt": [-1]}, "prompt", "value_out_of_range"),
        ({"prompt": [2**31]}, "prompt", "value_out_of_range"),
        ({"prompt": "\ud800"}, "prompt", "invalid_unicode"),
        ({"prompt": ["a"] * 21}, "prompt", "array_above_max_length"),
        ({"echo": True}, "echo", "unsupported_parameter"),
        ({"suffix": "end"}, "suffix", "unsupported_parameter"),
        ({"logprobs": 0}, "logprobs", "unsupported_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "unknown_parameter"),
        ({"max_tokens": 0}, "max_tokens", "value_out_of_range"),
        ({"otelctx": {"session": "s", "mode": "append"}}, "otelctx.session", "session_unsupported"),
    ],
)
def test_what_is_refused_names_the_parameter(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        text(**fields)
    assert (raised.value.param, raised.value.code) == (param, code)


async def test_an_answer_in_one_piece(direct: Any) -> None:
    async with direct(FakeEngine()) as client:
        body = (await client.post(PATH, json=BODY)).json()
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", "fake")
    assert body["choices"] == [{"index": 0, "text": "Hello there, friend.", "logprobs": None, "finish_reason": "stop"}]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (2, 4)
    assert body["otelctx"]["window"]["used"] == 6


async def test_a_stream_has_no_opening_and_each_choice_its_own_end(direct: Any) -> None:
    asked = BODY | {"prompt": ["a", "b c"], "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 2}
    async with direct(FakeEngine()) as client:
        answer = await client.post(PATH, json=asked)
    *events, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    *chunks, last = [json.loads(event.removeprefix("data: ")) for event in events]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in (0, 1):
        own = [choice for choice in choices if choice["index"] == index]
        assert [choice["text"] for choice in own] == ["Hello", " there", ""]
        assert [choice["finish_reason"] for choice in own] == [None, None, "length"]
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (3, 4)
    assert (last["otelctx"]["window"], last["otelctx"]["limit"], last["otelctx"]["dropped"]) == (None, None, 0)


async def test_if_one_of_several_fails_all_are_taken_back(direct: Any) -> None:
    engine = FakeEngine(fail=BudgetExhausted("no memory"))
    async with direct(engine) as client:
        answer = await client.post(PATH, json=BODY | {"prompt": ["a", "b", "c"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "insufficient_memory")
    assert (len(engine.outcomes), engine.active) == (3, 0)
    assert "completed" not in engine.outcomes
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@pytest.mark.parametrize("stream", [False, True])
async def test_when_the_client_goes_all_turns_are_taken_back(asgi: Any, stream: bool) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    await engine.start()
    asked = json.dumps(BODY | {"prompt": ["a", "b"], "stream": stream}).encode()
    request = asgi(app(engine, node=Node(Settings())), asked, path=PATH)
    task = asyncio.create_task(request.run())
    await asyncio.wait_for(engine.begun.wait(), 60)
    request.vanish()
    await asyncio.wait_for(task, 60)
    assert (engine.outcomes, engine.active) == (["cancelled"] * 2, 0)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
