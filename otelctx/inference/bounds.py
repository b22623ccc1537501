"""What the length of a text in bytes proves about its number of tokens. Pure.

For byte-level BPE without a normaliser and without added tokens that swallow what stands beside them, every token
stands for at least one byte of the text and at most for the longest token's:

    bytes / longest ≤ tokens ≤ bytes

Bytes that the vocabulary lacks are dropped by it without a token, so they don't count on the left side. For any other
kind of tokenizer nothing is claimed.
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


@dataclass(frozen=True, slots=True)
class Bounds:
    """``longest``: bytes of the longest token; ``missing``: the bytes that have no token."""

    longest: int
    missing: bytes = b""

    def least(self, texts: Iterable[str]) -> int:
        """Tokens that ``texts``, joined by anything, have at least."""
        size = sum(len(text.encode().translate(None, self.missing)) for text in texts)
        return -(-size // self.longest)

    def most(self, text: str) -> int:
        """Tokens that ``text`` has at most."""
        return len(text.encode())


def bounds_of(tokenizer: Mapping[str, Any]) -> Bounds | None:
    """The bounds of ``tokenizer`` (the content of a ``tokenizer.json``), or ``None`` if they don't hold for it."""
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    plain = (
        model.get("type") == "BPE"
        and model.get("unk_token") is None
        and tokenizer.get("normalizer") is None
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and _keeps_bytes(tokenizer.get("pre_tokenizer"))
        and not any(token["lstrip"] or token["rstrip"] for token in added)
    )
    if not plain:
        return None
    vocabulary = model["vocab"]
    spelled = {token["content"] for token in added}
    # One character for each byte, but added tokens are text as it is.
    own = (len(token) for token in vocabulary if token not in spelled)
    longest = max(1, *own, *(len(text.encode()) for text in spelled))
    return Bounds(longest, bytes(byte for character, byte in _ALPHABET.items() if character not in vocabulary))


def _steps(step: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if step is None:
        return
    if step["type"] == "Sequence":
        for inner in step["pretokenizers"]:
            yield from _steps(inner)
    else:
        yield step


def _keeps_bytes(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    steps = list(_steps(pre_tokenizer))
    return any(s["type"] == "ByteLevel" for s in steps) and all(
        (s["type"] == "ByteLevel" and not s["add_prefix_space"])
        or s["type"] == "Digits"
        or (s["type"] == "Split" and s["behavior"] != "Removed")
        for s in steps
    )
