"""What bytes prove about tokens is true, and nothing is claimed where it would not be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from otelctx.inference.bounds import Bounds, bounds_of

Make = Callable[..., Any]


def read(tokenizer: Any) -> Bounds | None:
    return bounds_of(json.loads(tokenizer.backend_tokenizer.to_str()))


def test_the_longest_token_is_counted_in_bytes(make_tokenizer: Make) -> None:
    assert read(make_tokenizer()) == Bounds(len("<|endoftext|>"))
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["éééééééééé"])
    assert read(tokenizer) == Bounds(20)


@given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.text("heltan \n"))
def test_the_bounds_hold(make_tokenizer: Make, text: str) -> None:
    tokenizer = CACHE.setdefault("t", make_tokenizer())
    bounds = read(tokenizer)
    assert bounds is not None
    count = len(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
    assert bounds.least([text]) <= count <= bounds.most(text)


CACHE: dict[str, Any] = {}
FAMILIES = ("llama-3.1", "qwen2.5", "qwen3", "gemma-3", "mistral-v0.1", "mistral-v0.3", "mistral-v7", "smollm2")


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_is_bounded(tokenizer_of: Make, name: str) -> None:
    """Two megabytes are refused by their length alone, whatever the family."""
    bounds = read(tokenizer_of(name))
    assert bounds is not None
    assert bounds.least(["word " * 400_000]) > 50_000


@given(
    name=st.sampled_from(FAMILIES),
    text=st.text(st.characters(exclude_categories=["Cs"]))
    | st.text(st.sampled_from("hel tan\n▁é\u0301\u0323K\u212a\u1fef\u2126ﬁ\u1100\u1161\u11a8\U0001d160<s>")),
)
def test_the_bounds_hold_for_each_family(tokenizer_of: Make, name: str, text: str) -> None:
    """Composed, decomposed, singletons, what doubles when it is composed, and spaces of all kinds."""
    tokenizer = tokenizer_of(name)
    bounds = CACHE.setdefault(name, read(tokenizer))
    count = len(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
    assert bounds.least([text]) <= count <= bounds.most(text)


def test_characters_prove_nothing_where_one_may_be_lost(tokenizer_of: Make) -> None:
    for change in (
        lambda data: data["model"].update(byte_fallback=False),
        lambda data: data["model"]["vocab"].pop("<0xF1>"),
        lambda data: data["model"]["vocab"].pop("▁"),
        lambda data: data.update(normalizer={"type": "Strip", "strip_left": True, "strip_right": True}),
        lambda data: data["pre_tokenizer"].update(behavior="Removed"),
    ):
        data = json.loads(tokenizer_of("gemma-3").backend_tokenizer.to_str())
        assert bounds_of(data) is not None
        change(data)
        assert bounds_of(data) is None


def test_bytes_without_a_token_prove_nothing(make_tokenizer: Make) -> None:
    """Real vocabularies lack some bytes, and drop them without a token."""
    data = json.loads(make_tokenizer().backend_tokenizer.to_str())
    del data["model"]["vocab"]["ñ"]  # how byte 0xf1 is spelled
    bounds = bounds_of(data)
    assert bounds is not None
    assert bounds.missing == b"\xf1"
    assert bounds.least(["\U00050000" * 13]) == 3  # four bytes each, of which three count


@pytest.mark.parametrize(
    "change",
    [
        lambda t: setattr(t.backend_tokenizer, "normalizer", normalizers.NFKC()),
        lambda t: setattr(t.backend_tokenizer, "pre_tokenizer", pre_tokenizers.Whitespace()),
        lambda t: setattr(t.backend_tokenizer, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda t: t.add_special_tokens({"additional_special_tokens": [AddedToken("<x>", rstrip=True)]}),
    ],
)
def test_nothing_is_claimed_for_other_kinds(make_tokenizer: Make, change: Callable[[Any], object]) -> None:
    tokenizer = make_tokenizer()
    change(tokenizer)
    assert read(tokenizer) is None
