"""Where the words of a turn go: nowhere, unless the standard variable or the engine's argument asks for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from otelctx import semconv
from otelctx.errors import ConfigError, TokenLimitExceeded
from otelctx.settings import CaptureContent
from otelctx.testing import Captured

Make = Callable[..., Any]
VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
DETAILS = semconv.EVENT_INFERENCE_DETAILS
CONTENT = {semconv.GEN_AI_INPUT_MESSAGES, semconv.GEN_AI_OUTPUT_MESSAGES}
QUESTION = [{"role": "user", "parts": [{"type": "text", "content": "a question"}]}]


@pytest.mark.parametrize(
    ("where", "on_span", "on_event"),
    [
        ("NO_CONTENT", False, False),
        ("SPAN_ONLY", True, False),
        ("EVENT_ONLY", False, True),
        ("SPAN_AND_EVENT", True, True),
    ],
)
async def test_messages_and_answer_stand_where_they_are_asked_for(
    otelctx_capture: Captured, make_speaker: Make, ask: Make, where: CaptureContent, on_span: bool, on_event: bool
) -> None:
    answer = await ask(await make_speaker("Hi!", capture_content=where), "a question", max_tokens=3, session="s")
    said = [{"role": "assistant", "parts": [{"type": "text", "content": answer.text}], "finish_reason": "length"}]
    chat = otelctx_capture.span("chat tiny")
    assert CONTENT & set(chat.attributes) == (CONTENT if on_span else set())
    if on_span:
        assert json.loads(chat.attributes[semconv.GEN_AI_INPUT_MESSAGES]) == QUESTION
        assert json.loads(chat.attributes[semconv.GEN_AI_OUTPUT_MESSAGES]) == said
    assert [log.name for log in otelctx_capture.logs] == ([DETAILS] if on_event else [])
    if on_event:
        log = otelctx_capture.log(DETAILS)
        assert (log.trace_id, log.span_id, log.severity) == (chat.trace_id, chat.span_id, "INFO")
        assert plain(log.attributes) == {
            semconv.GEN_AI_OPERATION: "chat",
            semconv.GEN_AI_PROVIDER: "otelctx",
            semconv.GEN_AI_REQUEST_MODEL: "tiny",
            semconv.GEN_AI_CONVERSATION_ID: "s",
            semconv.GEN_AI_FINISH_REASONS: ["length"],
            semconv.GEN_AI_INPUT_TOKENS: answer.result.usage.prompt_tokens,
            semconv.GEN_AI_OUTPUT_TOKENS: 3,
            semconv.GEN_AI_INPUT_MESSAGES: QUESTION,
            semconv.GEN_AI_OUTPUT_MESSAGES: said,
        }


def plain(value: Any) -> Any:
    """As lists and dicts: how an SDK keeps nested values of a record is its own affair."""
    if isinstance(value, str | int | float):
        return value
    if hasattr(value, "items"):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value]


async def test_a_turn_that_is_refused_has_its_question_and_its_error_on_record(
    otelctx_capture: Captured, make_engine: Make, ask: Make
) -> None:
    engine = make_engine(window=256, when_full="reject", capture_content="SPAN_AND_EVENT")
    with pytest.raises(TokenLimitExceeded):
        await ask(engine, "word " * 300)
    log = otelctx_capture.log(DETAILS)
    assert log.attributes[semconv.ERROR_TYPE] == "context_length_exceeded"
    assert list(log.attributes[semconv.GEN_AI_FINISH_REASONS]) == ["error"]
    assert CONTENT & set(log.attributes) == {semconv.GEN_AI_INPUT_MESSAGES}
    assert CONTENT & set(otelctx_capture.span("chat tiny").attributes) == {semconv.GEN_AI_INPUT_MESSAGES}


async def test_the_variable_speaks_where_the_engine_is_not_told(
    otelctx_capture: Captured, make_engine: Make, ask: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "span_only")
    await ask(make_engine(name="said"), "a question", max_tokens=1)
    await ask(make_engine(name="told", capture_content="NO_CONTENT"), "a question", max_tokens=1)
    assert semconv.GEN_AI_INPUT_MESSAGES in otelctx_capture.span("chat said").attributes
    assert semconv.GEN_AI_INPUT_MESSAGES not in otelctx_capture.span("chat told").attributes


def test_a_word_that_the_variable_does_not_know_is_refused_with_those_that_it_does(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(ConfigError, match=f"{VARIABLE} is 'yes'; it takes NO_CONTENT, SPAN_ONLY"):
        make_engine()
