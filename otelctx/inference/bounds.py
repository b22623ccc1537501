"""What the length of a text proves about its number of tokens. Pure.

For BPE without added tokens that swallow what stands beside them, every token stands for at most as much of the text as
the longest token, and at least for one byte of it:

    units / longest ≤ tokens ≤ bytes

Units are bytes where the vocabulary spells bytes. Bytes that it lacks are dropped without a token, so they don't count
on the left side. Where the text is composed first (NFC), ASCII is left alone, up to a character that something composes
with, and nothing gets longer than three times its bytes (Unicode's FAQ on normalization). Units are characters where
the vocabulary spells those, with ``▁`` for a space, and has a token for each byte of what it lacks. For any other kind
of tokenizer nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Bounds", "bounds_of"]


def _alphabet() -> dict[str, int]:
    """The 256 characters by which byte-level vocabularies spell bytes: printable ones themselves, others from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_ALPHABET: Final = _alphabet()
_SPACE: Final = "▁"


@dataclass(frozen=True, slots=True)
class Bounds:
    """``longest``: units of the longest token; ``missing``: the bytes that have no token; ``composed``: the text is
    composed before it is cut into tokens; ``characters``: these are the units."""

    longest: int
    missing: bytes = b""
    composed: bool = False
    characters: bool = False

    def least(self, texts: Iterable[str]) -> int:
        """Tokens that ``texts``, joined by anything, have at least."""
        return -(-sum(map(self._units, texts)) // self.longest)

    def most(self, text: str) -> int:
        """Tokens that ``text`` has at most."""
        size = len(text.encode())
        if self.characters:
            return size + 1  # a space may be put before it
        return 3 * size if self.composed and not text.isascii() else size

    def _units(self, text: str) -> int:
        if self.characters:
            return len(text)
        if self.composed and not text.isascii():
            ascii_ = text.encode("ascii", "ignore")
            # Each of the others may compose with one before it.
            return max(0, len(ascii_.translate(None, self.missing)) - (len(text) - len(ascii_)))
        return len(text.encode().translate(None, self.missing))


def bounds_of(tokenizer: Mapping[str, Any]) -> Bounds | None:
    """The bounds of ``tokenizer`` (the content of a ``tokenizer.json``), or ``None`` if they don't hold for it."""
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    plain = (
        model.get("type") == "BPE"
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and not any(token["lstrip"] or token["rstrip"] for token in added)
    )
    if not plain:
        return None
    vocabulary, spelled = model["vocab"], {token["content"] for token in added}
    own = max((len(token) for token in vocabulary if token not in spelled), default=1)
    if _spells_characters(tokenizer):
        return Bounds(max(1, own, *map(len, spelled)), characters=True)
    normalizer = tokenizer.get("normalizer")
    composed = normalizer == {"type": "NFC"}
    if model.get("unk_token") is not None or not (normalizer is None or composed):
        return None
    if not _keeps_bytes(tokenizer.get("pre_tokenizer")):
        return None
    # One character for each byte, but added tokens are text as it is.
    longest = max(1, own, *(len(text.encode()) for text in spelled))
    missing = bytes(byte for character, byte in _ALPHABET.items() if character not in vocabulary)
    return Bounds(longest, missing, composed)


def _spells_characters(tokenizer: Mapping[str, Any]) -> bool:
    """Whether it is SentencePiece's kind: no character is lost, and each but a space is itself until it is cut."""
    model, vocabulary = tokenizer["model"], tokenizer["model"]["vocab"]
    return (
        bool(model.get("byte_fallback"))
        and _SPACE in vocabulary
        and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
        and all(len(token["content"].encode()) > 1 for token in tokenizer["added_tokens"])
        and all(map(_keeps_characters, _steps(tokenizer.get("normalizer"), "normalizers")))
        and all(map(_keeps_characters, _steps(tokenizer.get("pre_tokenizer"), "pretokenizers")))
    )


def _keeps_characters(step: Mapping[str, Any]) -> bool:
    match step:
        case {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}:
            return True
        case {"type": "Prepend", "prepend": "▁"} | {"type": "Metaspace", "replacement": "▁"}:
            return True
        case {"type": "Split", "behavior": behavior}:
            return bool(behavior != "Removed")
        case _:
            return False


def _steps(step: Mapping[str, Any] | None, inside: str) -> Iterator[Mapping[str, Any]]:
    if step is None:
        return
    if step["type"] == "Sequence":
        for inner in step[inside]:
            yield from _steps(inner, inside)
    else:
        yield step


def _keeps_bytes(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    steps = list(_steps(pre_tokenizer, "pretokenizers"))
    return any(s["type"] == "ByteLevel" for s in steps) and all(
        (s["type"] == "ByteLevel" and not s["add_prefix_space"])
        or s["type"] == "Digits"
        or (s["type"] == "Split" and s["behavior"] != "Removed")
        for s in steps
    )
