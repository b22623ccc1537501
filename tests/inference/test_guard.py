"""What does not fit is refused before the model is touched, and the numbers that are given are right."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelctx.errors import ConfigError, InvalidRequest, TokenLimitExceeded
from otelctx.inference.guard import Guard, exchanges_of
from otelctx.inference.tokenizer import ChatTokenizer
from otelctx.inference.turn import Message

Make = Callable[..., Any]
MIN_OUTPUT = 16


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def rendered(tokenizer: Any, messages: Any) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids


@pytest.fixture
def counted(chatml: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Guard, list[int]]:
    """A guard, and the lengths of the texts that it tokenises from here on."""
    guard, lengths = Guard(chatml, window=128), []
    encode = guard.tokenizer.encode

    def counting(text: str) -> list[int]:
        lengths.append(len(text))
        return encode(text)

    monkeypatch.setattr(guard.tokenizer, "encode", counting)
    return guard, lengths


@pytest.mark.parametrize(("max_tokens", "needed"), [(None, 16), (10**30, 16), (16, 16), (5, 5), (1, 1)])
def test_the_limit_is_exact(chatml: Any, max_tokens: int | None, needed: int) -> None:
    """The reserve rule: 16 tokens for an answer, or as many as are asked for; a huge wish is no reason to refuse."""
    guard = Guard(chatml, window=128)
    fixed = len(rendered(chatml, user("")))
    room = 128 - fixed - needed
    assert len(guard.admit(user("z" * room), max_tokens)) == 128 - needed
    with pytest.raises(TokenLimitExceeded) as caught:
        guard.admit(user("z" * (room + 1)), max_tokens)
    assert caught.value.details == {
        "n_prompt_tokens": 128 - needed + 1,
        "max_context": 128,
        "max_new_tokens_requested": max_tokens,
        "max_new_tokens_allowed": needed - 1,
        "policy": "reject",
    }
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "context_length_exceeded", "messages")
    assert "maximum context length is 128 tokens" in caught.value.message


def test_a_huge_text_is_refused_without_tokenising_it(counted: tuple[Guard, list[int]]) -> None:
    guard, lengths = counted
    with pytest.raises(TokenLimitExceeded) as caught:
        guard.admit(user("word " * 400_000))
    assert lengths == []
    least = caught.value.details["n_prompt_tokens_at_least"]
    assert least == -(-(2_000_000 - 1) // len("<|endoftext|>"))  # the last space may be stripped by a template
    assert f"at least {least} tokens" in caught.value.message


def test_tokenising_stops_at_the_message_that_is_too_much(counted: tuple[Guard, list[int]]) -> None:
    """From the newest back, since that is what must fit in any case."""
    guard, lengths = counted
    messages = [*user("old " * 100), {"role": "assistant", "content": "yes"}, *user("z" * 120)]
    with pytest.raises(TokenLimitExceeded) as caught:
        guard.admit(messages)
    assert max(lengths) < 200
    assert 128 < caught.value.details["n_prompt_tokens_at_least"] < 200


TEXTS = st.text(st.sampled_from("hello tan\n€é"), max_size=90)


@settings(deadline=None)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=4),
    window=st.integers(32, 160),
    max_tokens=st.none() | st.integers(1, 200),
)
def test_no_verdict_is_wrong(chatml: Any, texts: list[str], window: int, max_tokens: int | None) -> None:
    guard = Guard(CHAT.setdefault("t", ChatTokenizer(chatml)), window=window)
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    exact = rendered(chatml, messages)
    quarter = window // 4
    needed = min(MIN_OUTPUT, quarter if max_tokens is None else min(max_tokens, quarter))
    if len(exact) + needed <= window:
        assert guard.admit(messages, max_tokens) == exact
        guard.check(messages, max_tokens)
        return
    with pytest.raises(TokenLimitExceeded) as caught:
        guard.admit(messages, max_tokens)
    with pytest.raises(TokenLimitExceeded):
        guard.check(messages, max_tokens)
    details = caught.value.details
    assert details.get("n_prompt_tokens", len(exact)) == len(exact)
    assert details.get("n_prompt_tokens_at_least", 0) <= len(exact)


CHAT: dict[str, ChatTokenizer] = {}


def test_most_requests_are_admitted_without_tokenising(counted: tuple[Guard, list[int]]) -> None:
    guard, lengths = counted
    guard.check(user("a short one"))
    assert lengths == []
    guard.check(user("z" * 60))
    assert lengths != []


async def test_a_long_text_is_tokenised_off_the_loop(chatml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, threads = Guard(chatml, window=50_000), []
    encode = guard.tokenizer.encode

    def noting(text: str) -> list[int]:
        threads.append(threading.current_thread() is threading.main_thread())
        return encode(text)

    monkeypatch.setattr(guard.tokenizer, "encode", noting)
    short, long = user("short"), user("long " * 2000)
    assert await guard.aadmit(short) == rendered(chatml, short)
    assert all(threads)
    threads.clear()
    assert await guard.aadmit(long) == rendered(chatml, long)
    assert not all(threads)
    with pytest.raises(TokenLimitExceeded):
        await guard.aadmit(user("long " * 20_000))


async def test_many_at_once_are_each_judged_alone(chatml: Any) -> None:
    """One over-long text among others harms none of them."""
    guard = Guard(chatml, window=9_000)
    texts = ["z" * length for length in (10, 9_500, 8_500, 20, 8_900)]
    verdicts = await asyncio.gather(*(guard.aadmit(user(text)) for text in texts), return_exceptions=True)
    assert [isinstance(verdict, TokenLimitExceeded) for verdict in verdicts] == [False, True, False, False, False]
    assert [len(v) for v in verdicts if isinstance(v, list)] == [
        len(rendered(chatml, user(texts[n]))) for n in (0, 2, 3, 4)
    ]


def test_where_older_exchanges_can_go_only_the_newest_must_fit(chatml: Any) -> None:
    guard = Guard(chatml, window=128)
    messages = tuple(Message(role, text) for role, text in [("user", "z" * 200), ("assistant", "a"), ("user", "new")])
    prompt = guard.prompt(messages, mode="turns")
    assert [len(exchange) > 200 for exchange in prompt.exchanges] == [True, False]
    assert prompt.ids == rendered(chatml, [{"role": m.role, "content": m.content} for m in messages])
    for late in (messages[:1], (*messages[:2], Message("user", "z" * 150))):
        with pytest.raises(TokenLimitExceeded) as caught:
            guard.prompt(late, mode="turns")
        assert caught.value.details["policy"] == "turns"


def test_what_stands_before_a_later_turn_counts(chatml: Any) -> None:
    guard = Guard(chatml, window=128)
    messages = (Message("user", "z" * 60),)
    new = guard.prompt(messages, first=False)
    assert new.head == ()
    room = 128 - MIN_OUTPUT - len(new.ids)
    guard.prompt(messages, first=False, pinned=room, mode="turns")
    with pytest.raises(TokenLimitExceeded) as caught:
        guard.prompt(messages, first=False, pinned=room + 1, mode="turns")
    assert caught.value.details["n_prompt_tokens"] == 128 - MIN_OUTPUT + 1


def test_an_exchange_ends_with_an_answer() -> None:
    roles = ("system", "user", "user", "assistant", "assistant", "system", "user")
    messages = [Message(role, "") for role in roles]
    assert [[n for n, _ in group] for group in exchanges_of(messages, True)] == [[1, 2, 3], [4], [5, 6]]
    assert [[n for n, _ in group] for group in exchanges_of(messages, False)] == [[0, 1, 2, 3], [4], [5, 6]]
    assert exchanges_of(messages[:1], True) == []


def test_a_system_prompt_alone_is_a_prompt(chatml: Any) -> None:
    messages = [{"role": "system", "content": "Speak."}]
    guard = Guard(chatml, window=128)
    assert guard.admit(messages) == rendered(chatml, messages)
    with pytest.raises(TokenLimitExceeded) as caught:
        guard.admit([{"role": "system", "content": "z" * 200}])
    assert caught.value.details["n_prompt_tokens"] > 200


def test_templates_that_need_all_messages_are_guarded_too(make_tokenizer: Make) -> None:
    template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer = make_tokenizer(template)
    guard = Guard(tokenizer, window=64)
    assert not guard.tokenizer.concatenative
    assert guard.admit(user("hello")) == rendered(tokenizer, user("hello"))
    with pytest.raises(TokenLimitExceeded) as caught:
        guard.admit(user("z" * 64))
    assert caught.value.details["n_prompt_tokens"] == len(rendered(tokenizer, user("z" * 64)))
    with pytest.raises(TokenLimitExceeded):
        guard.check(user("z" * 64))


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_a_wrong_max_tokens_is_not_a_matter_of_length(chatml: Any, max_tokens: int) -> None:
    guard = Guard(chatml, window=128)
    for call in (guard.admit, guard.check):
        with pytest.raises(InvalidRequest) as caught:
            call(user("a"), max_tokens)
        assert caught.value.param == "max_tokens"


def test_a_window_without_room_for_an_answer_is_a_mistake(chatml: Any) -> None:
    with pytest.raises(ConfigError):
        Guard(chatml, window=31)
