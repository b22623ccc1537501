"""What a chat request may say, and what is refused with the parameter's name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otelctx.errors import InvalidRequest
from otelctx.inference.sampling import Params
from otelctx.inference.turn import Message, TurnRequest
from otelctx.serving import parse
from otelctx.serving.body import decode
from otelctx.serving.parameters import MAX_TOKENS

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> parse.CompletionRequest:
    return parse.chat({"model": "m", "messages": HELLO} | fields, parse.Caller("anonymous"))


def one(**fields: Any) -> TurnRequest:
    (turn,) = chat(**fields).turns
    return turn


def test_defaults_are_those_of_the_api() -> None:
    request, turn = chat(), one()
    assert turn.messages == (Message("user", "hello"),)
    assert turn.params == Params()
    assert (turn.max_tokens, turn.stop, turn.stream, turn.deadline, turn.when_full) == (None, (), False, None, None)
    assert (turn.session, request.include_usage, request.model) == (None, False, "m")


def test_null_counts_as_absent_for_every_optional_parameter() -> None:
    optional = {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "n",
        "otelctx",
        "seed",
        "presence_penalty",
        "response_format",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
    }
    assert chat(**dict.fromkeys(optional)) == chat()


def test_everything_that_is_supported_reaches_the_turn() -> None:
    request = chat(
        temperature=0.5,
        top_p=1,
        seed=-7,
        frequency_penalty=-2,
        presence_penalty=2,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True},
        max_completion_tokens=5,
        n=1,
        user="u",
        prompt_cache_key="k",
        tools=[],
        response_format={"type": "text"},
        logprobs=False,
        otelctx={"session": "s", "mode": "append", "when_full": "slide", "timeout": 2.5},
    )
    assert request.include_usage
    (turn,) = request.turns
    assert turn.params == Params(temperature=0.5, top_p=1.0, seed=-7, frequency_penalty=-2.0, presence_penalty=2.0)
    assert (turn.stop, turn.stream, turn.max_tokens, turn.session) == (("a", "b"), True, 5, "s")
    assert (turn.when_full, turn.deadline) == ("slide", 2.5)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "developer", "content": "x"}, Message("system", "x")),
        ({"role": "assistant", "content": None}, Message("assistant", "")),
        (
            {"role": "assistant", "content": "x", "refusal": None, "audio": None, "tool_calls": []},
            Message("assistant", "x"),
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            Message("user", "a\nb"),
        ),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, Message("assistant", "no")),
        ({"role": "assistant", "content": None, "refusal": "no"}, Message("assistant", "no")),
        ({"role": "assistant", "content": "so far", "refusal": "no"}, Message("assistant", "so far\nno")),
        ({"role": "assistant", "content": "all", "refusal": ""}, Message("assistant", "all")),
        (
            {"role": "assistant", "content": "x", "annotations": [{"type": "url_citation"}], "anything": None},
            Message("assistant", "x"),
        ),
        ({"role": "user", "content": "x", "name": "ann"}, Message("user", "x", name="ann")),
        ({"role": "user", "content": "\U0001f600"}, Message("user", "\U0001f600")),
    ],
)
def test_messages_as_clients_send_them(message: dict[str, Any], expected: Message) -> None:
    assert one(messages=[message]).messages == (expected,)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": 5}, "model", "invalid_type"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": {}}, "messages", "invalid_type"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": ["hi"]}, "messages[0]", "invalid_type"),
        ({"messages": [*HELLO, {"role": "user"}]}, "messages[1].content", "invalid_type"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "empty_array"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "invalid_unicode"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "invalid_type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "unsupported_value",
        ),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "invalid_type"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "unknown_role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "unsupported_value"),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
            "messages[0].tool_calls",
            "unsupported_parameter",
        ),
        ({"messages": [HELLO[0] | {"prefix": True}]}, "messages[0].prefix", "unknown_parameter"),
        ({"messages": [HELLO[0] | {"audio": {"id": "a"}}]}, "messages[0].audio", "unknown_parameter"),
        ({"messages": [HELLO[0] | {"refusal": "no"}]}, "messages[0].refusal", "unsupported_parameter"),
        (
            {"messages": [{"role": "assistant", "refusal": ["no"]}]},
            "messages[0].refusal",
            "invalid_type",
        ),
        ({"max_tokens": -1}, "max_tokens", "value_out_of_range"),
        ({"max_tokens": 0}, "max_tokens", "value_out_of_range"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
        ({"max_tokens": True}, "max_tokens", "invalid_type"),
        ({"max_completion_tokens": -5}, "max_completion_tokens", "value_out_of_range"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_request"),
        ({"temperature": 2.1}, "temperature", "value_out_of_range"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"top_p": -0.1}, "top_p", "value_out_of_range"),
        ({"presence_penalty": 3}, "presence_penalty", "value_out_of_range"),
        ({"seed": 2**63}, "seed", "value_out_of_range"),
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"n": True}, "n", "unsupported_parameter"),
        ({"stop": ["a"] * 5}, "stop", "array_above_max_length"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": [1]}, "stop", "invalid_type"),
        ({"stop": "\udfff"}, "stop", "invalid_unicode"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_request"),
        ({"stream": True, "stream_options": []}, "stream_options", "invalid_type"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        ({"logprobs": True}, "logprobs", "unsupported_parameter"),
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
        ({"user": 5}, "user", "unsupported_parameter"),
        ({"max_new_tokens": 5}, "max_new_tokens", "unknown_parameter"),
        ({"otelctx": "s"}, "otelctx", "invalid_type"),
        ({"otelctx": {"mode": "append"}}, "otelctx.session", "invalid_type"),
        ({"otelctx": {"session": "", "mode": "append"}}, "otelctx.session", "invalid_session"),
        ({"otelctx": {"session": "s" * 257, "mode": "append"}}, "otelctx.session", "invalid_session"),
        ({"otelctx": {"when_full": "ring"}}, "otelctx.when_full", "invalid_value"),
        ({"otelctx": {"when_full": []}}, "otelctx.when_full", "invalid_value"),
        ({"otelctx": {"timeout": 0}}, "otelctx.timeout", "value_out_of_range"),
        ({"otelctx": {"timeout": -1}}, "otelctx.timeout", "value_out_of_range"),
        ({"otelctx": {"timeout": 86401}}, "otelctx.timeout", "value_out_of_range"),
        ({"otelctx": {"timeout": float("inf")}}, "otelctx.timeout", "value_out_of_range"),
        ({"otelctx": {"timeout": "5"}}, "otelctx.timeout", "invalid_type"),
        ({"otelctx": {"timeout": True}}, "otelctx.timeout", "invalid_type"),
        ({"seed": 1.5}, "seed", "invalid_type"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options", "unknown_parameter"),
        ({"messages": [HELLO[0] | {"tool_calls": 0}]}, "messages[0].tool_calls", "unsupported_parameter"),
        ({"otelctx": {"session": "s"}}, "otelctx.mode", "invalid_mode"),
        ({"otelctx": {"session": "s", "mode": "replace"}}, "otelctx.mode", "invalid_mode"),
        ({"otelctx": {"session": "s", "mode": "append", "x": 1}}, "otelctx", "unknown_parameter"),
    ],
)
def test_what_is_refused_names_the_parameter(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        chat(**fields)
    assert (raised.value.param, raised.value.code, raised.value.status) == (param, code, 400)
    assert param.split(".")[-1].split("[")[0] in raised.value.message


def test_a_huge_max_tokens_is_clipped_and_not_refused() -> None:
    assert one(max_tokens=10**30).max_tokens == MAX_TOKENS
    assert one(max_completion_tokens=1e300).max_tokens == MAX_TOKENS


def test_the_session_of_the_context_must_not_contradict_the_body_and_never_stands_in_for_it() -> None:
    body = {"model": "m", "messages": HELLO, "otelctx": {"session": "a", "mode": "append"}}
    assert parse.chat(body, parse.Caller("o", "a")).turns[0].session == "a"
    with pytest.raises(InvalidRequest) as raised:
        parse.chat(body, parse.Caller("o", "b"))
    assert raised.value.code == "session_mismatch"
    del body["otelctx"]
    assert parse.chat(body, parse.Caller("o", "b")).turns[0].session is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b"\xff\xfe{\x00}\x00",
        b'{"a":"\xff"}',
        b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "cut", "array", "null", "nan", "infinity", "utf-16", "latin-1", "deep", "digits"],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as raised:
        decode(body)
    assert raised.value.code == "invalid_json"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        "model",
        "messages",
        "prompt",
        "max_tokens",
        "temperature",
        "stop",
        "stream",
        "stream_options",
        "otelctx",
        "n",
        "seed",
        "tools",
    ]
)


@given(st.dictionaries(NAMES, JSON))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine says nothing about the rule
def test_any_json_is_either_taken_or_refused(body: dict[str, Any]) -> None:
    """No input raises anything but the error that says what is wrong."""
    with suppress(InvalidRequest):
        assert parse.chat(body, parse.Caller("o")).turns
    with suppress(InvalidRequest):
        assert parse.text(body, parse.Caller("o")).turns
