"""Messages and answers as the GenAI conventions write them: whole if they are short, bounded in any case."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx import semconv
from otelctx.inference.transcript import MAX_CHARACTERS, MAX_MESSAGES, Transcript
from otelctx.inference.turn import Message, TurnRequest
from otelctx.settings import CaptureContent

MESSAGES = (Message("system", "be kind"), Message("user", 'say "é"', "Ann"))


def texts(items: list[dict[str, Any]]) -> list[str]:
    return [part["content"] for item in items for part in item["parts"]]


@pytest.mark.parametrize(
    ("where", "span", "event"),
    [
        ("NO_CONTENT", False, False),
        ("SPAN_ONLY", True, False),
        ("EVENT_ONLY", False, True),
        ("SPAN_AND_EVENT", True, True),
    ],
)
def test_each_word_of_the_standard_variable_says_where(where: CaptureContent, span: bool, event: bool) -> None:
    found = Transcript(TurnRequest(MESSAGES), where)
    assert (found.on_span, found.on_event) == (span, event)


def test_messages_are_written_as_the_conventions_say() -> None:
    found = Transcript(TurnRequest(MESSAGES), "SPAN_ONLY")
    found.add("Hel")
    found.add("lo")
    assert found.asked() == {
        semconv.GEN_AI_INPUT_MESSAGES: [
            {"role": "system", "parts": [{"type": "text", "content": "be kind"}]},
            {"role": "user", "parts": [{"type": "text", "content": 'say "é"'}], "name": "Ann"},
        ]
    }
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "Hello"}], "finish_reason": "stop"}]
    assert found.answered("stop") == {semconv.GEN_AI_OUTPUT_MESSAGES: answer}
    written = found.as_attributes(found.answered("stop"))
    assert {key: json.loads(value) for key, value in written.items()} == found.answered("stop")


def test_a_turn_that_failed_before_its_first_word_has_no_answer_and_one_cut_short_has_its_beginning() -> None:
    found = Transcript(TurnRequest(MESSAGES), "SPAN_ONLY")
    assert found.answered("error") == {}
    found.add("Once upon")
    (answer,) = found.answered("error")[semconv.GEN_AI_OUTPUT_MESSAGES]
    assert (texts([answer]), answer["finish_reason"]) == (["Once upon"], "error")


def test_a_prompt_is_a_users_message_unless_it_is_token_ids() -> None:
    text = Transcript(TurnRequest((), prompt="Once"), "SPAN_ONLY").asked()
    assert text == {semconv.GEN_AI_INPUT_MESSAGES: [{"role": "user", "parts": [{"type": "text", "content": "Once"}]}]}
    assert Transcript(TurnRequest((), prompt=(1, 2)), "SPAN_ONLY").asked() == {}


@given(st.lists(st.integers(0, 2 * MAX_CHARACTERS), max_size=6))
def test_text_is_bounded_and_the_newest_is_kept_whole_first(lengths: list[int]) -> None:
    messages = tuple(Message("user", "x" * length) for length in lengths)
    items = Transcript(TurnRequest(messages), "SPAN_ONLY").asked().get(semconv.GEN_AI_INPUT_MESSAGES, [])
    assert len(items) == len(lengths)
    assert sum(map(len, texts(items))) <= MAX_CHARACTERS + len(lengths)
    if lengths and lengths[-1] <= MAX_CHARACTERS:
        assert texts(items)[-1] == messages[-1].content
    for text, length in zip(texts(items), lengths, strict=True):
        assert text == "x" * length or text.endswith("…")


def test_of_very_many_messages_the_newest_are_kept() -> None:
    messages = tuple(Message("user", str(n)) for n in range(1000))
    items = Transcript(TurnRequest(messages), "SPAN_ONLY").asked()[semconv.GEN_AI_INPUT_MESSAGES]
    assert texts(items) == [str(n) for n in range(1000 - MAX_MESSAGES, 1000)]
