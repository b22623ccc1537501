"""What an engine is asked for, checked."""

from __future__ import annotations

from typing import Any

import pytest

from otelctx.errors import InvalidRequest
from otelctx.inference.turn import Message, check_max_tokens, messages_of


def test_mappings_and_messages_are_the_same() -> None:
    given = [{"role": "developer", "content": "Be brief."}, Message("user", "hi", name="ann")]
    assert messages_of(given) == (Message("system", "Be brief."), Message("user", "hi", "ann"))


@pytest.mark.parametrize(
    ("messages", "code", "param"),
    [
        ([], "empty_array", "messages"),
        ([{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}], "unknown_role", "messages[1].role"),
        ([{"content": "a"}], "unknown_role", "messages[0].role"),
        ([{"role": ["user"], "content": "a"}], "unknown_role", "messages[0].role"),
        ([{"role": "user", "content": None}], "invalid_type", "messages[0].content"),
        ([{"role": "user", "content": "a\ud83d"}], "invalid_unicode", "messages[0].content"),
    ],
)
def test_what_cannot_be_understood_is_named(messages: list[Any], code: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages_of(messages)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)


@pytest.mark.parametrize("value", [-5, 0, True, 1.0, "7"])
def test_max_tokens_is_a_positive_integer(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_max_tokens(value)
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize("value", [None, 1, 10**40])
def test_too_much_output_is_not_the_parameters_fault(value: int | None) -> None:
    check_max_tokens(value)
