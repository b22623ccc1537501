"""From requests to prompts: what is checked before anything else, raw prompts, and what is new in a session."""

from __future__ import annotations

from typing import Any, cast

import pytest

from otelctx.errors import InvalidRequest, TokenLimitExceeded
from otelctx.inference.guard import Guard
from otelctx.inference.prompting import Prompter
from otelctx.inference.turn import Message, TurnRequest
from otelctx.sessions.arena import Arena
from otelctx.sessions.record import SessionRecord
from otelctx.sessions.window import TokenWindow

USER = (Message("user", "hello"),)


@pytest.fixture
def prompter(chatml: Any) -> Prompter:
    return Prompter(Guard(chatml, window=128), "turns", vocab=266)


def raw(prompt: Any, **options: Any) -> TurnRequest:
    return TurnRequest((), prompt=prompt, **options)


async def test_a_raw_text_is_continued_as_it_is(prompter: Prompter, chatml: Any) -> None:
    request = prompter.check(raw("hello<|im_end|>"))
    prompt = await prompter.prompt(request, None)
    assert chatml.decode(prompt.ids) == "hello<|im_end|>"
    assert chatml.eos_token_id not in prompt.ids
    assert (prompt.neutralised, prompt.history) == (1, False)


async def test_raw_ids_are_continued_as_they_are_special_or_not(prompter: Prompter) -> None:
    assert (await prompter.prompt(prompter.check(raw((1, 5, 265, 0))), None)).ids == [1, 5, 265, 0]


@pytest.mark.parametrize("ids", [(266,), (5, -1), (5, True), (5, 1.0), (2**40,)])
def test_an_id_that_the_model_does_not_know_is_refused_with_its_place(prompter: Prompter, ids: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prompter.check(raw(ids))
    assert (caught.value.status, caught.value.param) == (400, f"prompt[{len(ids) - 1}]")
    assert "0 to 265" in caught.value.message


@pytest.mark.parametrize("prompt", ["", ()])
def test_an_empty_prompt_is_refused(prompter: Prompter, prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prompter.check(raw(prompt))
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_a_session_takes_messages_only(prompter: Prompter) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prompter.check(raw("hello", session="s"))
    assert caught.value.param == "session"


@pytest.mark.parametrize(("prompt", "exact"), [("z" * 113, True), ((5,) * 113, True), ("z" * 2000, False)])
async def test_a_raw_prompt_has_the_same_limit(prompter: Prompter, prompt: Any, exact: bool) -> None:
    """Not even ``turns`` finds anything in it that could go; the error names the parameter that is too long."""
    assert len((await prompter.prompt(raw(prompt[:112], when_full="turns"), None)).ids) == 112
    with pytest.raises(TokenLimitExceeded) as caught:
        await prompter.prompt(raw(prompt, when_full="turns"), None)
    assert caught.value.param == "prompt"
    assert (caught.value.details.get("n_prompt_tokens") == 113) is exact
    assert ("n_prompt_tokens_at_least" in caught.value.details) is not exact


async def test_half_a_character_in_a_raw_prompt_is_refused(prompter: Prompter) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await prompter.prompt(prompter.check(raw("a\ud800")), None)
    assert (caught.value.code, caught.value.param) == ("invalid_unicode", "prompt")


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (TurnRequest(()), "messages"),
        (TurnRequest((Message("robot", "a"),)), "messages[0].role"),
        (TurnRequest(USER, stop=("a", "")), "stop"),
        (TurnRequest(USER, when_full=cast(Any, "ring")), "when_full"),
    ],
)
def test_what_is_wrong_in_a_request_is_told_first(prompter: Prompter, request_: TurnRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prompter.check(request_)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_the_request_says_what_happens_when_it_is_full_or_the_engine_does() -> None:
    assert TurnRequest(USER).mode("turns") == "reject"
    assert TurnRequest(USER, session="s").mode("turns") == "turns"
    assert TurnRequest(USER, session="s", when_full="slide").mode("turns") == "slide"
    assert TurnRequest(USER, when_full="turns").mode("reject") == "turns"


async def test_only_what_is_new_is_tokenised_in_a_session(prompter: Prompter, chatml: Any) -> None:
    record = SessionRecord("s", "alice", TokenWindow(Arena(4), 128), 0.0, 0.0, turns=1, system="Sing.")
    messages = (Message("system", "Sing."), *USER)
    prompt = await prompter.prompt(TurnRequest(messages, session="s"), record)
    assert chatml.decode(prompt.ids) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(InvalidRequest) as caught:
        await prompter.prompt(TurnRequest(messages[:1], session="s"), record)
    assert caught.value.param == "messages"
