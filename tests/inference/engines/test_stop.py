"""Stop strings: what the client sees, and what the session keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from otelctx.inference.sampling import Sampler

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("says", "stop", "shown"),
    [
        ("hello, hell and she sells shells", ("and s",), "hello, hell "),
        (
            "hello, hell and she sells shells",
            ("ll an", "shells"),
            "hello, he",
        ),  # inside a token: its rest is re-encoded
        ("abcabcabd", ("abd",), "abcabc"),
        ("\u00e9\u00e8\u20ac and so on", ("\u20ac",), "\u00e9\u00e8"),
        ("stop", ("stop",), ""),
    ],
)
async def test_a_stop_string_across_tokens_ends_the_text_before_it(
    make_speaker: Make, ask: Make, window_of: Make, chatml: Any, says: str, stop: tuple[str, ...], shown: str
) -> None:
    """Committed is what was shown: the session goes on as if the answer had been that short."""
    engine = await make_speaker(says)
    answer = await ask(engine, "hello", session="s", max_tokens=60, stop=stop)
    assert answer.text == shown
    assert (answer.result.finish_reason, answer.result.limit, answer.result.outcome) == ("stop", None, "completed")
    prompt, ids = answer.result.usage.prompt_tokens, window_of(engine, "s")
    assert chatml.decode(ids[prompt:]) == shown
    assert answer.result.window.used == len(ids)
    again = await ask(engine, "go on", session="s", max_tokens=1)
    conversation = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": shown},
        {"role": "user", "content": "go on"},
    ]
    rendered = chatml.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    assert chatml.decode(window_of(engine, "s")[: again.result.usage.prompt_tokens]) == rendered


async def test_after_a_stop_string_the_next_answer_is_the_models(
    make_speaker: Make, ask: Make, window_of: Make, judge: Any
) -> None:
    """The row held more than was kept; what is fed next must follow what was kept."""
    engine = await make_speaker("hello, hell and she sells shells")
    await ask(engine, "hello", session="s", max_tokens=60, stop=("ll an",))
    engine._core._sampler = Sampler()
    answer = await ask(engine, "go on", session="s", max_tokens=25)
    judge.check(window_of(engine, "s"), answer.result.usage.completion_tokens)


async def test_text_held_back_for_a_stop_string_that_never_comes_is_shown(make_engine: Make, ask: Make) -> None:
    full = (await ask(make_engine(), "hello", max_tokens=30)).text
    answer = await ask(make_engine(), "hello", max_tokens=30, stop=(full[-1] + "never",))
    assert answer.text == full
    assert answer.result.limit == "output"


async def test_the_ids_that_end_an_answer_end_it(make_engine: Make, ask: Make, window_of: Make, chatml: Any) -> None:
    """The end token is counted and neither shown nor kept; the template's own closing is fed in its place."""
    probe = make_engine()
    prompt = (await ask(probe, "hello", session="s", max_tokens=20)).result.usage.prompt_tokens
    generated = window_of(probe, "s")[prompt:]
    end = next(token for n, token in enumerate(generated) if n > 4 and token not in generated[:n])
    at = generated.index(end)
    engine = make_engine(eos_ids=(end,))
    answer = await ask(engine, "hello", session="s", max_tokens=20)
    assert (answer.result.finish_reason, answer.result.limit) == ("stop", None)
    assert answer.result.usage.completion_tokens == at + 1
    assert window_of(engine, "s")[prompt:] == generated[:at]
    await ask(engine, "more", session="s", max_tokens=1)
    closing = chatml.encode("<|im_end|>\n", add_special_tokens=False)
    assert window_of(engine, "s")[prompt + at :][: len(closing)] == closing


@pytest.mark.parametrize(("max_tokens", "text", "cut"), [(1, "\ufffd", "utf8"), (2, "\u00e9", None)])
async def test_a_character_that_was_cut_is_said(
    make_speaker: Make, ask: Make, max_tokens: int, text: str, cut: str | None
) -> None:
    """An answer that ends inside a character is marked, and shows U+FFFD for it."""
    answer = await ask(await make_speaker("\u00e9"), "hello", max_tokens=max_tokens)
    assert (answer.text, answer.result.cut) == (text, cut)
