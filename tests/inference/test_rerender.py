"""A session's conversation, rendered as a whole with each turn: what stays, what goes, and that the numbers add up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelctx.errors import InvalidRequest, TokenLimitExceeded
from otelctx.inference.overflow import Mode, Truncate
from otelctx.inference.placing import place, remember
from otelctx.inference.rerender import Rerender, text_limit
from otelctx.inference.tokenizer import ChatTokenizer
from otelctx.inference.turn import Message, TurnRequest
from otelctx.sessions.arena import Arena
from otelctx.sessions.record import SessionRecord
from otelctx.sessions.window import TokenWindow

WINDOW = 160
NAMES = ("qwen3", "gemma-3", "mistral-v0.3")
CHATS: dict[str, ChatTokenizer] = {}


def chat_of(tokenizer_of: Any, name: str) -> ChatTokenizer:
    if name not in CHATS:
        CHATS[name] = ChatTokenizer(tokenizer_of(name))
    return CHATS[name]


def ids_of(chat: ChatTokenizer, messages: Any) -> list[int]:
    return list(chat.whole([Message(role, text) for role, text in messages]).ids)


TURNS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 60), st.sampled_from(["turns", "reject"])), max_size=10)


@settings(deadline=None)
@given(name=st.sampled_from(NAMES), system=st.booleans(), turns=TURNS)
def test_the_window_is_the_conversation_and_what_left_is_counted(
    tokenizer_of: Any, name: str, system: bool, turns: list[tuple[int, int, Mode]]
) -> None:
    """Turn by turn, committed or refused: prompt + dropped = rendered, appended = kept + evicted."""
    chat = chat_of(tokenizer_of, name)
    record = SessionRecord("s", "alice", TokenWindow(Arena(40), WINDOW), 0.0, 0.0)
    evicted = 0
    for number, (question, answer, mode) in enumerate(turns):
        new = [Message("user", f"{number} " + "x" * question)]
        if system and not record.messages:
            new.insert(0, Message("system", "Be brief."))
        whole = ids_of(chat, [*record.messages, *((m.role, m.content) for m in new)])
        rerender = Rerender(chat, WINDOW, 20, mode)
        newest = ids_of(chat, [*record.messages[:system], *((m.role, m.content) for m in new)])
        if len(newest) + 16 > WINDOW or (mode == "reject" and record.messages and len(whole) + 20 > WINDOW):
            with pytest.raises(TokenLimitExceeded) as caught:
                rerender.session(record.messages, new)
            assert caught.value.details["n_prompt_tokens"] == len(whole)
            continue
        prompt = rerender.session(record.messages, new)
        placed = place(record, prompt, 20, mode)
        assert placed.tx is not None
        assert placed.ids.tolist() == prompt.ids == ids_of(chat, prompt.messages)
        dropped = placed.verdict.dropped if isinstance(placed.verdict, Truncate) else 0
        assert len(placed.ids) + dropped == len(whole)
        assert placed.verdict.prompt == len(placed.ids)
        evicted += placed.evicted
        assert record.window.evicted == evicted
        assert record.window.appended == record.window.kept + evicted
        if system:
            assert prompt.messages is not None
            assert prompt.messages[0] == ("system", "Be brief.")
        record.window.commit(placed.tx)
        remember(record, TurnRequest(tuple(new), session="s"), prompt, (), "y" * answer)


def test_a_session_pins_what_each_of_its_conversations_begins_with(tokenizer_of: Any) -> None:
    for name, begins in [
        ("qwen3", "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"),
        ("gemma-3", "<bos><start_of_turn>user\nBe brief.\n\n"),
        ("mistral-v0.3", "<s>"),
    ]:
        messages = [Message("system", "Be brief."), Message("user", "hello")]
        prompt = Rerender(chat_of(tokenizer_of, name), WINDOW, None, "turns").session((), messages)
        assert tokenizer_of(name).decode(prompt.head).startswith(begins)


def test_once_it_must_be_cut_it_is_cut_to_three_quarters(tokenizer_of: Any) -> None:
    history = [(role, "z" * 8) for _ in range(5) for role in ("user", "assistant")]
    prompt = Rerender(chat_of(tokenizer_of, "gemma-3"), WINDOW, 20, "turns").session(history, [Message("user", "new")])
    assert prompt.cut > 0
    assert len(prompt.ids) <= WINDOW * 3 // 4
    assert prompt.messages is not None
    once_more = [*history[2 * (prompt.cut - 1) :], ("user", "new")]
    assert len(ids_of(chat_of(tokenizer_of, "gemma-3"), once_more)) > WINDOW * 3 // 4
    assert list(prompt.messages) == once_more[2:]


def test_an_answer_without_end_is_kept_no_longer_than_a_session_may(tokenizer_of: Any) -> None:
    chat = chat_of(tokenizer_of, "gemma-3")
    record = SessionRecord("s", "alice", TokenWindow(Arena(40), WINDOW), 0.0, 0.0)
    first = Rerender(chat, WINDOW, 20, "slide").session((), [Message("user", "a")])
    remember(record, TurnRequest((Message("user", "a"),), session="s"), first, (), "y" * 100_000)
    assert sum(len(text) for _, text in record.messages) <= text_limit(WINDOW) + 1
    after = Rerender(chat, WINDOW, 20, "slide").session(record.messages, [Message("user", "b")])
    assert after.messages == (("user", "b"),)


def test_what_is_surely_too_long_is_not_tokenised(tokenizer_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = ChatTokenizer(tokenizer_of("qwen3"))
    lengths: list[int] = []
    monkeypatch.setattr(chat, "encode", lambda text: lengths.append(len(text)) or [])
    with pytest.raises(TokenLimitExceeded) as caught:
        Rerender(chat, WINDOW, None, "reject").alone([Message("user", "word " * 400_000)])
    assert lengths == []
    assert caught.value.details["n_prompt_tokens_at_least"] > WINDOW


def test_more_text_than_a_session_may_keep_is_refused_by_name(tokenizer_of: Any) -> None:
    rerender = Rerender(chat_of(tokenizer_of, "gemma-3"), WINDOW, 20, "turns")
    with pytest.raises(InvalidRequest) as caught:
        rerender.session((), [Message("user", "a" + " " * text_limit(WINDOW))])
    assert str(text_limit(WINDOW)) in caught.value.message
