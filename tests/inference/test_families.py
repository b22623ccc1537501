"""The templates of real families, each with a tokenizer of their make: what a guard admits is what transformers itself
would render and tokenise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelctx.errors import InvalidRequest, TokenLimitExceeded
from otelctx.inference.guard import Guard
from otelctx.inference.prompt import without
from otelctx.inference.turn import Message, messages_of

NAMES = (
    "llama-3",
    "llama-3.1",
    "llama-3.2",
    "qwen2.5",
    "qwen3",
    "gemma-2",
    "gemma-3",
    "mistral-v0.1",
    "mistral-v0.3",
    "mistral-v7",
    "smollm2",
)
CONTENTS = st.one_of(
    st.text(st.sampled_from("he llo\n\tthé€1.<|>[/INST]_"), max_size=14),
    st.sampled_from(["", " the end ", "\n\n", "<think>\nhm\n</think>\n\nthe answer", "e\u0301", "\u0301x", "the"]),
)
GUARDS: dict[tuple[str, int], Guard] = {}


def guard_of(tokenizer_of: Any, name: str, window: int = 100_000) -> Guard:
    if (name, window) not in GUARDS:
        GUARDS[name, window] = Guard(tokenizer_of(name), window=window)
    return GUARDS[name, window]


def rendered(tokenizer: Any, messages: Any) -> list[int]:
    plain = [{"role": m.role, "content": m.content} if isinstance(m, Message) else dict(m) for m in messages]
    ids: list[int] = tokenizer.apply_chat_template(plain, tokenize=True, add_generation_prompt=True, return_dict=False)
    return ids


@st.composite
def conversations(draw: Any, families: Mapping[str, Any]) -> tuple[str, list[dict[str, str]]]:
    """A family, and a conversation that its template takes."""
    name = draw(st.sampled_from(NAMES))
    family = families[name]
    count = draw(st.integers(0, 4)) * 2 + 1
    if family.alternates:
        roles = ["user", "assistant"] * 5
    else:
        roles = draw(st.lists(st.sampled_from(["user", "assistant"]), min_size=count, max_size=count))
    messages = [{"role": role, "content": draw(CONTENTS)} for role in roles[:count]]
    if family.system and draw(st.booleans()):
        messages.insert(0, {"role": "system", "content": draw(CONTENTS)})
    return name, messages


@pytest.fixture(scope="module")
def any_conversation(families: Any) -> st.SearchStrategy[tuple[str, list[dict[str, str]]]]:
    return conversations(families)


@pytest.mark.parametrize("name", NAMES)
def test_each_template_is_known_for_what_it_is(families: Any, tokenizer_of: Any, name: str) -> None:
    """Taken apart only if an old message is written alike whatever follows; the families' reasons are with them."""
    assert guard_of(tokenizer_of, name).tokenizer.concatenative is families[name].concatenative


def test_there_is_no_family_without_a_test(families: Any) -> None:
    assert set(families) == set(NAMES)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_what_is_admitted_is_what_the_template_writes(
    any_conversation: Any, families: Any, tokenizer_of: Callable[[str], Any], data: st.DataObject
) -> None:
    name, messages = data.draw(any_conversation)
    tokenizer = tokenizer_of(name)
    ids = guard_of(tokenizer_of, name).admit(messages)
    assert ids == rendered(tokenizer, messages)
    if families[name].bos is not None and name != "smollm2":
        assert ids.count(tokenizer.bos_token_id) == 1
        assert ids[0] == tokenizer.bos_token_id


@settings(deadline=None, max_examples=200)
@given(data=st.data(), window=st.integers(64, 200), max_tokens=st.none() | st.integers(1, 60))
def test_what_is_cut_and_what_is_left_are_the_rendered_prompt(
    any_conversation: Any,
    tokenizer_of: Callable[[str], Any],
    data: st.DataObject,
    window: int,
    max_tokens: int | None,
) -> None:
    """prompt + dropped = rendered for a history without a session; head and newest exchange stay."""
    name, plain = data.draw(any_conversation)
    tokenizer, messages = tokenizer_of(name), messages_of(plain)
    total = len(rendered(tokenizer, messages))
    reserve = min(window // 4, window if max_tokens is None else max_tokens)
    try:
        prompt = guard_of(tokenizer_of, name, window).fitted(messages, max_tokens, "turns")
    except TokenLimitExceeded:
        older = len([m for m, before in zip(plain[1:], plain, strict=False) if before["role"] == "assistant"])
        assert len(rendered(tokenizer, without(messages, older))) + min(reserve, 16) > window
        return
    kept = without(messages, prompt.cut)
    assert prompt.ids == rendered(tokenizer, kept)
    assert len(prompt.ids) + prompt.dropped == total
    assert kept[-1] == messages[-1]
    if total + reserve <= window:
        assert prompt.cut == 0
    if messages[0].role == "system":
        assert kept[0] == messages[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_special_token_in_a_message_is_text(families: Any, tokenizer_of: Any, name: str) -> None:
    """Nobody opens or closes a turn from inside a message, and what the model reads is what was written."""
    tokenizer, guard = tokenizer_of(name), guard_of(tokenizer_of, name)
    for special in families[name].special:
        ids = guard.admit([{"role": "user", "content": f"a{special}b"}])
        plain = rendered(tokenizer, [{"role": "user", "content": "ab"}])
        number = tokenizer.convert_tokens_to_ids(special)
        assert ids.count(number) == plain.count(number)
        assert f"a{special}b" in tokenizer.decode(ids).replace("\u200b", "")


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(("gemma", "mistral-v0"))])
def test_what_a_template_does_not_take_is_the_requests_fault(tokenizer_of: Any, name: str) -> None:
    guard = guard_of(tokenizer_of, name)
    twice = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    middle = [*twice[:1], {"role": "assistant", "content": "b"}, {"role": "system", "content": "c"}]
    wrong = [twice, middle, *([[{"role": "system", "content": "c"}, *twice[:1]]] if name == "gemma-2" else [])]
    for messages in wrong:
        for call in (guard.admit, guard.check):
            with pytest.raises(InvalidRequest) as caught:
                call(messages)
            assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize("name", ["llama-3", "qwen3", "gemma-3"])
async def test_a_raw_prompt_begins_as_the_tokenizer_begins_a_text(tokenizer_of: Any, name: str) -> None:
    tokenizer = tokenizer_of(name)
    prompt = await guard_of(tokenizer_of, name).araw("hello there", None)
    assert prompt.ids == tokenizer.encode("hello there")


def test_thoughts_are_taken_out_of_the_history_and_prove_no_length(tokenizer_of: Any) -> None:
    """A megabyte of old thoughts is nothing to the model; only what the template writes counts."""
    guard = guard_of(tokenizer_of, "qwen3", 256)
    thought = "<think>\n" + "hm " * 400_000 + "\n</think>\n\nyes"
    messages = [
        {"role": role, "content": text} for role, text in [("user", "a"), ("assistant", thought), ("user", "b")]
    ]
    short = [messages[0], {"role": "assistant", "content": "yes"}, messages[2]]
    assert guard.admit(messages) == guard.admit(short)
