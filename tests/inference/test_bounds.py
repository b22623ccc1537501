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
        lambda t: setattr(t.backend_tokenizer, "normalizer", normalizers.NFC()),
        lambda t: setattr(t.backend_tokenizer, "pre_tokenizer", pre_tokenizers.Whitespace()),
        lambda t: setattr(t.backend_tokenizer, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda t: t.add_special_tokens({"additional_special_tokens": [AddedToken("<x>", rstrip=True)]}),
    ],
)
def test_nothing_is_claimed_for_other_kinds(make_tokenizer: Make, change: Callable[[Any], object]) -> None:
    tokenizer = make_tokenizer()
    change(tokenizer)
    assert read(tokenizer) is None
