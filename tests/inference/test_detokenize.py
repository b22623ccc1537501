"""Streamed text is the decoded text, whole characters at a time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from otelctx.errors import ConfigError
from otelctx.inference.detokenize import Detokenizer, Stream

LINES = ("the cat sat on the mat", "naïve café — “déjà vu”", "日本語のテキスト 🙂🙃", "x = {'a': [1, 2]}\n\treturn x")
RARE = "𐍈"  # no line above holds it, so each of its four bytes is a token
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def byte_level() -> Any:
    """Byte-level BPE that needs several tokens for most characters beyond ASCII."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("日本", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def sentencepiece() -> Any:
    """As Llama 2's: spaces as ``▁``, bytes as ``<0xNN>`` where a character has no token, one leading space stripped."""
    pieces = ["<unk>", "<s>", "▁the", "▁cat", "▁", "é", "日", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b"]
    model = models.BPE(
        vocab={piece: at for at, piece in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


BYTE_LEVEL = byte_level()
SENTENCEPIECE = sentencepiece()
TINY = Detokenizer(BYTE_LEVEL)
PIECES = Detokenizer(SENTENCEPIECE)
TOKENS = st.integers(0, len(BYTE_LEVEL) - 1)
FIRST_BYTE = SENTENCEPIECE.convert_tokens_to_ids("<0x00>")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def decode(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def pushed(stream: Stream, ids: list[int]) -> list[str]:
    return [stream.push(token) for token in ids]


@given(st.lists(TOKENS))
def test_any_tokens_stream_to_what_they_decode_to(ids: list[int]) -> None:
    """Also where the bytes are not UTF-8, where special tokens fall inside a character, and at a cut end."""
    stream = TINY.stream()
    assert "".join(pushed(stream, ids)) + stream.finish()[0] == decode(BYTE_LEVEL, ids)
    assert TINY.text(ids) == decode(BYTE_LEVEL, ids)


@given(TEXTS)
def test_a_text_comes_back_in_whole_characters(text: str) -> None:
    """No piece holds a replacement character that the text does not hold, and nothing is left at the end."""
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    stream = TINY.stream()
    pieces = pushed(stream, ids)
    assert "".join(pieces) == text
    assert stream.pending == 0
    assert stream.finish() == ("", 0)


@given(TEXTS, st.data())
def test_a_cut_text_says_how_many_bytes_are_missing_their_rest(text: str, data: st.DataObject) -> None:
    """What was pushed is a prefix of the text; the bytes held back are the start of its next character."""
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    stream = TINY.stream()
    shown = "".join(pushed(stream, ids))
    assert text.startswith(shown)
    tail, dropped = stream.finish()
    assert tail == REPLACEMENT * (dropped > 0)
    whole = b"".join(TINY.table[token] for token in ids)
    assert len(whole) == len(shown.encode()) + dropped


def test_a_character_of_four_tokens_appears_with_the_last() -> None:
    """Each token alone would be a replacement character."""
    ids = BYTE_LEVEL.encode(RARE, add_special_tokens=False)
    assert len(ids) == 4
    stream = TINY.stream()
    assert pushed(stream, ids) == ["", "", "", RARE]


def test_bytes_that_cannot_complete_show_at_once() -> None:
    """The start of a character followed by another one is given up on, not held for ever."""
    broken = BYTE_LEVEL.encode(RARE, add_special_tokens=False)[:2]
    stream = TINY.stream()
    assert pushed(stream, broken) == ["", ""]
    assert stream.pending == 2
    assert stream.push(BYTE_LEVEL.encode("x", add_special_tokens=False)[0]) == REPLACEMENT + "x"
    assert stream.finish() == ("", 0)


def test_special_tokens_and_unknown_ids_have_no_text() -> None:
    """Added tokens that are not special have theirs."""
    stream = TINY.stream()
    tool = BYTE_LEVEL.convert_tokens_to_ids("<tool>")
    assert pushed(stream, [BYTE_LEVEL.eos_token_id, len(BYTE_LEVEL) + 7, -1, tool]) == ["", "", "", "<tool>"]


@given(st.lists(st.one_of(st.sampled_from([2, 3, 4, 5, 6]), TEXTS.map(str.encode)), max_size=8))
def test_byte_fallback_streams_to_what_it_decodes_to(parts: list[int | bytes]) -> None:
    """Complete characters, spelled as pieces or as bytes; one leading space is the tokenizer's own."""
    ids: list[int] = []
    for part in parts:
        ids += [part] if isinstance(part, int) else [FIRST_BYTE + byte for byte in part]
    stream = PIECES.stream()
    assert "".join(pushed(stream, ids)) == decode(SENTENCEPIECE, ids)
    assert stream.finish() == ("", 0)


def test_byte_fallback_gives_up_at_the_next_piece() -> None:
    """As the tokenizer itself: half a character before a space is a replacement character."""
    ids = [FIRST_BYTE + 0xE2, SENTENCEPIECE.convert_tokens_to_ids("▁cat")]
    assert PIECES.text(ids) == decode(SENTENCEPIECE, ids) == REPLACEMENT + " cat"


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.Metaspace(), None])
def test_other_decoders_are_refused(decoder: Any) -> None:
    """They join tokens by rules that the table does not hold, and a wrong text is worse than none."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(ConfigError, match="decoder"):
        Detokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


@pytest.mark.model
def test_real_tokenizer(smollm2: Any) -> None:
    """Every token alone, and texts of many scripts, on SmolLM2's 49152 tokens."""
    tokenizer = smollm2.tokenizer
    detokenizer = Detokenizer(tokenizer)
    for token in range(0, len(tokenizer), 7):
        assert detokenizer.text([token]) == decode(tokenizer, [token])

    @given(st.lists(st.integers(0, len(tokenizer) - 1)), TEXTS)
    def check(ids: list[int], text: str) -> None:
        assert detokenizer.text(ids) == decode(tokenizer, ids)
        # Not always the text itself: this vocabulary lacks a few bytes, such as the first of U+40000.
        encoded = tokenizer.encode(text, add_special_tokens=False)
        assert detokenizer.text(encoded) == decode(tokenizer, encoded)

    check()
